/* The hot kernels in portable C. */
#include "cpu_vector.h"

#include "loops_attention.h"
#include "loops_attention_backward.h"
#include "loops_conv.h"
#include "loops_dense_backward.h"
#include "loops_conv_backward.h" /* uses what loops_dense_backward.h has */
#include "loops_linear.h"
#include "loops_loss.h"
#include "loops_mlp.h" /* uses what loops_dense_backward.h has */
#include "loops_norm.h"
#include "loops_quantised.h"
#include "loops_sma.h"
#include "loops_sma_backward.h"
#include "loops_ssd.h"
#include "loops_ssd_backward.h" /* uses what loops_ssd.h has */
#include "loops_mixer.h" /* uses what loops_sma.h has */

void cpu_linear_few(const cpu_task *task) { cpu_linear_few_rows_plain(task); }
