//! Zstandard frames: decoding any bytes stays within the buffer, and every payload survives a round
//! trip.
#![no_main]

use kvtier_codec::Zstd;
use libfuzzer_sys::fuzz_target;

#[path = "../stage_checks.rs"]
mod stage_checks;

fuzz_target!(|input: (u16, &[u8])| stage_checks::check(&Zstd::default(), 0, input.0, input.1));
