//! bf16-split frames of every element type: decoding any bytes stays within the buffer, and every
//! payload survives a round trip.
#![no_main]

use kvtier_codec::Bf16Split;
use libfuzzer_sys::fuzz_target;

#[path = "../stage_checks.rs"]
mod stage_checks;

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (element, raw_len, bytes) = input;
    // Element types that do not exist among them.
    stage_checks::check(&Bf16Split, element % 6, raw_len, bytes);
});
