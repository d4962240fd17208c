//! Classes of chunks: hits and pause, or what the caller hinted.

/// The most hits that are told apart.
pub(crate) const HITS_MAX: u8 = 7;
/// The pause of a conversation that is new.
pub(crate) const NEW: u8 = 7;
/// Classes of hits and pauses; hinted ones come after.
const SEEN: u8 = crate::returns::SEEN as u8;
/// Classes of one number of hits.
const KIN: u8 = crate::returns::KIN as u8;
/// The class of chunks whose conversation is over.
pub(crate) const ENDED: u8 = 62;
/// The class of chunks that are kept until a time: none of them goes while another can.
pub(crate) const RETAINED: u8 = 63;
/// How many weights there are.
pub(crate) const WEIGHTS: usize = 4;

/// The class of a chunk with so many hits, of a conversation that paused so long.
pub(crate) fn class_of(hits: u8, gap: u8) -> u8 {
    let hits = (u8::BITS - hits.leading_zeros()).min(3) as u8;
    hits * KIN + gap
}

/// The pause of a class; that of a hinted one is not known.
pub(crate) fn gap(class: u8) -> u8 {
    if class < SEEN { class % KIN } else { NEW }
}

/// A pause in octaves, against the time in which as many chunks are used as there are.
pub(crate) fn gap_of(age: u32, residents: usize) -> u8 {
    let (quarters, residents) = (4 * u64::from(age), residents as u64 + 1);
    // Compared, since to divide takes longer.
    (0..6).map(|octave| u8::from(quarters >= residents << octave)).sum()
}

/// The class of a chunk that is expected to return in so many milliseconds, in octaves from half a second to weeks.
pub(crate) fn hinted(ms: u64) -> u8 {
    let octave = (u64::BITS - ms.leading_zeros()).clamp(9, 9 + 29);
    SEEN + (octave - 9) as u8
}

/// How much the return of a chunk saves for each byte that it takes up, against the average.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    /// The average cost for a byte, learnt.
    average: f64,
}

impl Weight {
    /// The weight of a chunk of this cost and these bytes.
    pub fn of(&mut self, cost: u32, bytes: u64) -> usize {
        if cost == 0 || bytes == 0 {
            return AVERAGE;
        }
        let ratio = f64::from(cost) / bytes as f64;
        if self.average == 0.0 {
            self.average = ratio;
        }
        self.average += (ratio - self.average) / 1024.0;
        match ratio / self.average {
            more if more > 1.5 => AVERAGE + 1,
            less if less < 0.67 => AVERAGE - 1,
            _ => AVERAGE,
        }
    }
}

/// The weight of a chunk of this priority.
pub(crate) fn prior(priority: i8) -> usize {
    match priority {
        ..0 => AVERAGE - 1,
        0 => AVERAGE,
        1 => AVERAGE + 1,
        _ => AVERAGE + 2,
    }
}

/// The weight of a chunk like most.
pub(crate) const AVERAGE: usize = 1;

/// What a weight multiplies.
pub(crate) fn factor(weight: usize) -> f32 {
    [0.5, 1.0, 2.0, 4.0][weight]
}
