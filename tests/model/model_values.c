/* States as values: saved, loaded, copied, taken back, cancelled: model_values DEVICE_SPEC DATA_DIR. */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#endif
#include "value_cases.h"

#if defined(_WIN32)
#include <process.h>
#define process_id _getpid
#else
#include <unistd.h>
#define process_id getpid
#endif

char path[128];
static void name_file(void) { snprintf(path, sizeof path, "model_values.%ld.state", (long)process_id()); }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves_and_goes_on),
        cmocka_unit_test(goes_on_behind_other_blocks),
        cmocka_unit_test(moves_one_sequence),
        cmocka_unit_test(shares_one_context), cmocka_unit_test(forgets_what_was_taken_back),
        cmocka_unit_test(converts_storage),
        cmocka_unit_test(moves_between_devices),
        cmocka_unit_test(refuses_other_models),
        cmocka_unit_test(refuses_damage),
        cmocka_unit_test(survives_failures),
        cmocka_unit_test(keeps_the_old_file),
        cmocka_unit_test(writes_as_memory),
        cmocka_unit_test(returns_to_marks),
        cmocka_unit_test(stops_behind_a_piece),
        cmocka_unit_test(stops_going_back),
        cmocka_unit_test(stops_copying),
        cmocka_unit_test(resetting_the_only_sequence_mends),
        cmocka_unit_test(keeps_histories),
    };
    name_file();
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
