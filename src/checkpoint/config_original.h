/* config.json as Mamba-2's own code writes it: no model_type, the mixer's settings in ssm_cfg. Source: mamba_ssm's MambaConfig and Mamba2. */
#ifndef DART_CONFIG_ORIGINAL_H
#define DART_CONFIG_ORIGINAL_H

#include "json.h"

/* Whether the object is one of these: it has d_model and no model_type. */
bool config_original_is(const json_t *root);
/* Makes an object with the keys of Hugging Face's Mamba-2 of the same meaning, for json_decref: the vocabulary is padded to
 * pad_vocab_size_multiple, absent keys have the defaults of that code. DART_UNSUPPORTED for layers other than Mamba2, for attention and MLP
 * layers, and for more groups than one, which that code normalises one by one. */
dart_status config_original_translate(const json_t *root, const char *name, base_report *report, json_t **translated);

#endif
