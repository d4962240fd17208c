//! Records of TLS 1.3 over a network that cuts, repeats and changes them: the received bytes are a prefix of the sent ones.
#![no_main]

use kvtier_s3::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| fuzzing::tls_records(script));
