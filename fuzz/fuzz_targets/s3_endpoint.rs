//! Endpoints from configurations: an accepted one is a valid `host` header and names one bucket.
#![no_main]

use kvtier_s3::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    fuzzing::endpoint(text);
    fuzzing::endpoint(&format!("s3://{text}"));
    fuzzing::endpoint(&format!("https://{text}"));
});
