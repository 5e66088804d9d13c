// The slot of a window that a token lies in, see args.h. Include in a kernel whose arguments have S.
uint window_slot(uint position) { return position % args.S % WINDOW; }
