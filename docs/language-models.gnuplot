# gnuplot docs/language-models.gnuplot, in the root of the repository: draws docs/language-models.png from docs/language-models.csv, and
# docs/language-models-curves.png from docs/language-models-curves.csv.
set terminal pngcairo size 900,520 font ",12"
set output "docs/language-models.png"
set datafile separator ","
set xlabel "distance to where the letters stood, bytes"
set ylabel "right letters of 1,536, %"
set logscale x 2
set xrange [56:2300]
set xtics ("64" 64, "256" 256, "512" 512, "1,024" 1024, "1,900" 1900)
set yrange [0:100]
set grid ytics lc rgb "#dddddd"
set key outside right center
array X[5] = [64, 256, 512, 1024, 1900]
row(n) = sprintf("< awk -F, 'NR==%d {for (i=2; i<=NF; i++) print $i}' docs/language-models.csv", n)
plot row(2) using (X[$0+1]):($1/15.36) with linespoints lw 3 pt 7 ps 1.3 lc rgb "#0072B2" title "DART", \
     row(4) using (X[$0+1]):($1/15.36) with linespoints lw 2 pt 5 ps 1.2 lc rgb "#D55E00" title "Transformer", \
     row(5) using (X[$0+1]):($1/15.36) with linespoints lw 2 pt 9 ps 1.3 lc rgb "#009E73" title "Mamba-2", \
     row(3) using (X[$0+1]):($1/15.36) with linespoints lw 2 pt 11 ps 1.3 dt 2 lc rgb "#56B4E9" title "DART without memories"

set terminal pngcairo size 1200,520 font ",12"
set output "docs/language-models-curves.png"
unset logscale
set xtics autofreq
set yrange [2:4]
set xrange [0:*]
set ylabel "perplexity a byte, validation"
set key inside right top
set multiplot layout 1,2
curve(model, column) = sprintf("< awk -F, '$1==\"%s\" {print %s \",\" exp($5)}' docs/language-models-curves.csv", model, column)
do for [panel in "$3/1e6 $4"] {
    set xlabel panel eq "$4" ? "seconds of one H100, validation included" : "bytes of training, millions"
    plot curve("dart", panel) with linespoints lw 3 pt 7 ps 1 lc rgb "#0072B2" title "DART", \
         curve("mamba2", panel) with linespoints lw 2 pt 9 ps 1 lc rgb "#009E73" title "Mamba-2", \
         curve("dart-small", panel) with linespoints lw 2 pt 11 ps 1 dt 2 lc rgb "#56B4E9" title "DART of 1.8 M parameters"
}
unset multiplot
