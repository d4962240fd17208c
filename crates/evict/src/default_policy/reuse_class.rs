//! Classes of chunks: hits and pause, or what the caller hinted.

/// The most hits that are distinguished.
pub(crate) const HITS_MAX: u8 = 7;
/// The pause of a conversation that is new.
pub(crate) const NEW: u8 = super::reuse_model::NEW;
/// Classes of hits and pauses; hinted ones come after.
const SEEN: u8 = super::reuse_model::SEEN as u8;
/// The class of new chunks that were the last of their request. Engines that save the last, partly
/// filled block of a prompt never ask for it again: the next request has filled it.
pub(crate) const TAIL: ReuseClass =
    ReuseClass::hint((super::reuse_model::TAIL - super::reuse_model::SEEN) as u16);
/// The class of chunks whose conversation has ended.
pub(crate) const ENDED: ReuseClass = ReuseClass::hint(30);
/// The class of chunks that are kept until a time: evicted only after all others.
pub(crate) const RETAINED: ReuseClass = ReuseClass::hint(31);

// The bits of a class, from the lowest: the last request or the number of a hint 5, hits 3, whether
// hinted 1.
const HINTED: u16 = 1 << 8;
const HITS_SHIFT: u32 = 5;
/// The bits below the hits.
const LOW: u16 = (1 << HITS_SHIFT) - 1;

/// The class of a chunk, in 9 bits: its hits, the pause of the conversation before its last request
/// and the chunks which that request added; or what the caller hinted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReuseClass(u16);

impl ReuseClass {
    pub const BITS: u32 = 9;

    /// The class of a chunk with this many hits, up to 7, whose conversation had this last request.
    pub fn seen(hits: u8, request: LastRequest) -> Self {
        ReuseClass(u16::from(hits) << HITS_SHIFT | u16::from(request.0))
    }

    const fn hint(number: u16) -> Self {
        ReuseClass(HINTED | number)
    }

    pub fn from_bits(bits: u16) -> Self {
        ReuseClass(bits & ((1 << ReuseClass::BITS) - 1))
    }

    pub fn bits(self) -> u16 {
        self.0
    }

    pub fn hits(self) -> u8 {
        (self.0 >> HITS_SHIFT & 7) as u8
    }

    pub fn with_hits(self, hits: u8) -> Self {
        ReuseClass(self.0 & !(7 << HITS_SHIFT) | u16::from(hits) << HITS_SHIFT)
    }

    /// Whether this is the class of `hint`, whatever the hits.
    pub fn is(self, hint: ReuseClass) -> bool {
        self.with_hits(0) == hint
    }

    /// The last request; unknown for a hinted chunk.
    pub fn last_request(self) -> LastRequest {
        if self.0 & HINTED == 0 {
            LastRequest((self.0 & LOW) as u8)
        } else {
            // A hint takes the bits of the last request.
            LastRequest::new(NEW, 0)
        }
    }

    /// The index of this class in the reuse model, which distinguishes 0, 1, 2 to 3, 4 to 6, and
    /// more hits.
    pub fn index(self) -> u8 {
        let low = (self.0 & LOW) as u8;
        if self.0 & HINTED != 0 {
            return SEEN + low;
        }
        // The octaves are 0, 1, 2 to 3, and 4 to 7. The hits 7, at which counting stops, stand for
        // all above too and are apart.
        let octave = (u8::BITS - self.hits().leading_zeros()) as u8;
        let hits = octave + u8::from(self.hits() == HITS_MAX);
        hits << HITS_SHIFT | low
    }
}

/// The last request of a chunk's conversation, in 5 bits: how long the conversation paused before
/// it, and how many chunks it added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastRequest(u8);

impl LastRequest {
    /// A request after a pause of this octave (see [`gap_of`]) that added this many chunks.
    pub fn new(gap: u8, added: usize) -> Self {
        let size = match added {
            0..=1 => 0,
            2..=4 => 1,
            5..=15 => 2,
            _ => 3,
        };
        LastRequest(size << 3 | gap)
    }

    pub fn gap(self) -> u8 {
        self.0 & 7
    }

    pub fn with_gap(self, gap: u8) -> Self {
        LastRequest(self.0 & !7 | gap)
    }
}

/// A pause in octaves, against the time in which as many chunks are used as there are.
pub(crate) fn gap_of(age: u32, residents: usize) -> u8 {
    // From a quarter of that time on. One resident more than there are: without any, every pause
    // would be the longest.
    let quarters = 4 * u64::from(age);
    let residents = residents as u64 + 1;
    // Compares, since a division takes longer.
    (0..6).map(|octave| u8::from(quarters >= residents << octave)).sum()
}

/// The class of a chunk that is expected to return in this many milliseconds, in octaves from half
/// a second to two years.
pub(crate) fn hinted(ms: u64) -> ReuseClass {
    // 29 octaves, numbered below the classes `TAIL`, `ENDED` and `RETAINED`.
    let octave = (u64::BITS - ms.leading_zeros()).clamp(9, 9 + 28);
    ReuseClass::hint((octave - 9) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_five_classes_and_hints_come_after() {
        let request = LastRequest::new(0, 0);
        let index = |hits| ReuseClass::seen(hits, request).index() >> HITS_SHIFT;
        let indices = [0, 1, 2, 3, 4, 5, 6, 7].map(index);
        assert_eq!(indices, [0, 1, 2, 2, 3, 3, 3, 4]);
        let last = ReuseClass::seen(HITS_MAX, LastRequest::new(NEW, usize::MAX));
        assert_eq!(last.index() + 1, SEEN);
        assert_eq!(usize::from(RETAINED.index()) + 1, super::super::reuse_model::CLASSES);
    }

    #[test]
    fn a_request_has_its_pause_whatever_it_added() {
        for added in [0, 4, 15, 16] {
            let gaps = [0, 3, NEW].map(|gap| LastRequest::new(gap, added).gap());
            assert_eq!(gaps, [0, 3, NEW], "{added} added");
        }
    }

    #[test]
    fn expected_returns_have_a_class_for_each_octave_and_share_none_with_other_hints() {
        let classes = [0, 511, 512, 1023, 1024, 1 << 35, 1 << 36, u64::MAX].map(hinted);
        let octaves = classes.map(|class| class.index() - SEEN);
        assert_eq!(octaves, [0, 0, 1, 1, 2, 27, 28, 28]);
        assert!(hinted(u64::MAX).index() < TAIL.index());
    }

    #[test]
    fn the_parts_of_a_class_change_alone() {
        for bits in 0..1 << ReuseClass::BITS {
            let class = ReuseClass::from_bits(bits);
            assert_eq!(class.bits(), bits);
            for hits in 0..=HITS_MAX {
                let other = class.with_hits(hits);
                assert_eq!(other.hits(), hits);
                assert_eq!(
                    (other.bits() & HINTED, other.bits() & LOW),
                    (bits & HINTED, bits & LOW)
                );
            }
        }
        for (added, hits) in [(1, 0), (4, 1), (15, 6), (16, 7)] {
            for gap in 0..=NEW {
                let request = LastRequest::new(gap, added);
                let class = ReuseClass::seen(hits, request);
                assert_eq!((class.hits(), class.last_request()), (hits, request));
                for other in 0..=NEW {
                    assert_eq!(request.with_gap(other), LastRequest::new(other, added));
                }
            }
        }
    }

    #[test]
    fn a_pause_is_counted_in_octaves_from_a_quarter_of_the_time_of_all_chunks() {
        let ages = [0, 1, 2, 3, 4, 7, 8, 16, 32, 63, 64, 1000, u32::MAX];
        let gaps = ages.map(|age| gap_of(age, 7));
        assert_eq!(gaps, [0, 0, 1, 1, 2, 2, 3, 4, 5, 5, 6, 6, 6]);
        assert_eq!([0, 1, 8].map(|age| gap_of(age, 0)), [0, 3, 6], "one more than there are");
    }
}
