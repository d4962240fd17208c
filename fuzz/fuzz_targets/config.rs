//! Configurations of kvtier and LMCache: a file of any form, and one setting by environment.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    kvtier::config::fuzzing::file(text);
    if let Some((name, value)) = text.split_once('=') {
        kvtier::config::fuzzing::setting(name, value);
    }
});
