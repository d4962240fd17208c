//! Records of TLS 1.3 as they come over a network that cuts, repeats and changes them: what lands is what was sent, from its beginning.
#![no_main]

use kvtier_s3::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| fuzzing::tls_records(script));
