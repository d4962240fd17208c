//! Lengths that show whether a stored chunk may be encoded. A listing of a bucket has nothing but
//! names and lengths.
//!
//! Frames are padded with zeros to lengths of one class. Every other length is that of raw bytes.
//! A chunk stored as it is may have a length of the class too: then its length shows nothing. KV
//! data has even lengths, and all lengths of the class are odd.

/// Lengths of encoded chunks are one less than a multiple of this.
const STEP: usize = 64;
/// The most zeros behind a frame.
pub(crate) const PADDING_MAX: usize = STEP - 1;
/// Where the header of a frame has the number of zeros behind it.
pub(crate) const PADDING_AT: usize = 3;

/// Whether a stored chunk of this length may be encoded. Otherwise the stored bytes are the raw
/// ones.
///
/// ```
/// use kvtier_codec::may_be_encoded;
///
/// assert!(may_be_encoded(63) && may_be_encoded(64 * 1000 - 1));
/// assert!(!may_be_encoded(64) && !may_be_encoded(100_000));
/// ```
pub fn may_be_encoded(stored_len: u64) -> bool {
    stored_len % STEP as u64 == PADDING_MAX as u64
}

/// Pads the frame in the first `len` bytes of `out`. Returns its length with the padding.
pub(crate) fn pad(out: &mut [u8], len: usize) -> usize {
    let padding = PADDING_MAX - len % STEP;
    out[len..len + padding].fill(0);
    // At most 63.
    out[PADDING_AT] = padding as u8;
    len + padding
}

/// Splits the padding from the end of a frame's payload; `None` where it is none.
pub(crate) fn strip(payload: &[u8], padding: u8) -> Option<&[u8]> {
    let padding = usize::from(padding);
    let len = payload.len().checked_sub(padding).filter(|_| padding <= PADDING_MAX)?;
    let (payload, zeros) = payload.split_at(len);
    zeros.iter().all(|byte| *byte == 0).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_get_lengths_of_the_class_and_their_payload_back() {
        for len in 16..300 {
            let mut out = vec![7; len + PADDING_MAX];
            out[PADDING_AT] = 0;
            let padded = pad(&mut out, len);
            assert!(may_be_encoded(padded as u64) && padded - len < STEP, "{len}");
            assert_eq!(strip(&out[16..padded], out[PADDING_AT]), Some(&[7; 300][..len - 16]));
        }
    }

    #[test]
    fn what_is_no_padding_is_refused() {
        let mut payload = [0; 100];
        assert_eq!(strip(&payload, 63).map(<[u8]>::len), Some(37));
        assert_eq!(strip(&payload, 64), None, "too much");
        assert_eq!(strip(&payload[..10], 11), None, "more than there is");
        payload[99] = 1;
        assert_eq!((strip(&payload, 1), strip(&payload, 0).is_some()), (None, true));
    }
}
