//! Decodes a chunk while its stored bytes arrive, so that little is left after the last one.

use kvtier_codec::DecodeProgress;
use kvtier_mem::Lease;
use kvtier_s3::{BodyObserver, ResponseHead};

use crate::ops::decode::{fits, raw_pieces};
use crate::ops::metadata::{StoredFacts, StreamVerifier};
use crate::state::counters::add;
use crate::state::shared::Shared;

/// An object that arrives: its bytes are verified, and decoded where they are in memory for encoded
/// bytes.
#[derive(Debug)]
pub struct ArrivingObject<'a> {
    pub verifier: StreamVerifier<'a>,
    /// What was decoded.
    pub decoded: DecodeProgress,
    shared: &'a Shared,
    /// The memory of the load; none if the object arrives in it.
    raw: Option<&'a mut [Lease]>,
    /// Nothing is decoded before the object is whole.
    only_when_whole: bool,
}

impl<'a> ArrivingObject<'a> {
    /// Before the first byte. `raw` is the memory to decode into.
    pub fn new(
        shared: &'a Shared,
        verifier: StreamVerifier<'a>,
        raw: Option<&'a mut [Lease]>,
    ) -> Self {
        ArrivingObject {
            verifier,
            decoded: DecodeProgress::default(),
            shared,
            raw,
            only_when_whole: false,
        }
    }

    /// Decodes at most one block of the bytes that match their checksums: this thread reads for other
    /// loads too. What is left when the object is whole is decoded then, and errors are found then.
    fn decode(&mut self, landed: &[u8]) {
        let ArrivingObject { verifier, decoded, shared, raw: Some(raw), .. } = self else { return };
        let Some(StoredFacts::Valid(facts)) = &verifier.facts else { return };
        if verifier.is_verified() {
            return;
        }
        let verified = usize::try_from(verifier.verified_bytes()).unwrap_or(usize::MAX);
        let Some(arrived) = landed.get(..verified) else { return };
        let encoding = &shared.encoding;
        // Headers come before the block.
        while let Some(first) = arrived.get(..decoded.wanted()) {
            // Without a thread for it, it is decoded later.
            let Some(progress) = encoding.loads.try_run(|| {
                let mut raw = raw_pieces(raw, facts.raw_len);
                encoding.tier.decode_arrived(facts, first, &mut raw, *decoded)
            }) else {
                return;
            };
            let Ok(progress) = progress else {
                self.only_when_whole = true;
                return;
            };
            let bytes = progress.raw_bytes().saturating_sub(decoded.raw_bytes());
            *decoded = progress;
            if bytes > 0 {
                add(&shared.counters.decoded_arriving_bytes, bytes as u64);
                return;
            }
            // A stage that asks for what it had would be asked for ever.
            if decoded.wanted() <= first.len() {
                self.only_when_whole = true;
                return;
            }
        }
    }
}

impl BodyObserver for ArrivingObject<'_> {
    fn begin(&mut self, head: &ResponseHead) -> bool {
        let verifies = self.verifier.begin(head);
        self.decoded = DecodeProgress::default();
        self.only_when_whole = !matches!(
            (&self.verifier.facts, &self.raw),
            (Some(StoredFacts::Valid(facts)), Some(raw)) if !facts.is_plain() && fits(facts, raw)
        );
        verifies
    }

    fn received(&mut self, landed: &[u8], new: usize) {
        self.verifier.received(landed, new);
        if !self.only_when_whole {
            self.decode(landed);
        }
    }
}
