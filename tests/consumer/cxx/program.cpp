// The library from C++17, with its handles in unique_ptr.
#include <dartlm/model.h>

#include <iostream>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

template <class T, void (*destroy)(T **)> struct destroyer {
    void operator()(T *object) const { destroy(&object); }
};
template <class T, void (*destroy)(T **)> using handle = std::unique_ptr<T, destroyer<T, destroy>>;

void check(dart_status status)
{
    if (status != DART_OK) throw std::runtime_error(dart_status_name(status));
}

} // namespace

int main()
try {
    dart_context *context = nullptr;
    check(dart_context_create(nullptr, &context));
    handle<dart_context, dart_context_destroy> context_handle(context);

    dart_device_options options = {};
    options.spec = "cpu";
    dart_device *device = nullptr;
    check(dart_device_open(context, &options, &device));
    handle<dart_device, dart_device_destroy> device_handle(device);

    dart_model_config config = {};
    config.sma = true;
    config.V = 32;
    config.W = 16;
    config.layers = 1;
    config.H = 2;
    config.P = 16;
    config.G = 1;
    config.N = 8;
    config.K = 4;
    config.S = 4;
    config.eps = config.sma_eps = 1e-5f;
    dart_model *model = nullptr;
    check(dart_model_random(device, &config, 1, nullptr, &model));
    handle<dart_model, dart_model_destroy> model_handle(model);
    dart_state *state = nullptr;
    check(dart_state_create(model, nullptr, &state));
    handle<dart_state, dart_state_destroy> state_handle(state);

    const std::vector<int32_t> ids = {1, 2, 3, 4, 5};
    std::vector<float> logits(config.V);
    dart_prefill_args prefill = {};
    prefill.ids = ids.data();
    prefill.L = static_cast<uint32_t>(ids.size());
    prefill.want = DART_LOGITS_LAST;
    prefill.logits = logits.data();
    check(dart_prefill(state, &prefill));
    std::cout << "dartlm " << dart_version() << " from C++: works\n";
    return dart_state_position(state, 0) == ids.size() ? 0 : 1;
} catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
