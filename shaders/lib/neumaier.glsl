// A sum and what its additions lost (Neumaier 1974).
struct Neumaier { float total, lost; };
void add_to(inout Neumaier sum, float term)
{
    precise float next = sum.total + term;
    precise float big = abs(sum.total) >= abs(term) ? sum.total : term;
    precise float little = abs(sum.total) >= abs(term) ? term : sum.total;
    precise float left = (big - next) + little;
    sum.total = next;
    sum.lost += left;
}
