//! Codec ids: which stages a chunk went through, as its facts name them.

use kvtier_key::CodecId;

use crate::{Error, StageId};

/// The most stages of one chain: an id has four bits for each.
pub const STAGES_MAX: usize = 4;

/// The stages of one chunk in the order in which they were applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageIds {
    ids: [Option<StageId>; STAGES_MAX],
}

impl StageIds {
    /// Adds the stage that is applied next. There is space for `STAGES_MAX`.
    pub(crate) fn push(&mut self, id: StageId) {
        if let Some(free) = self.ids.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(id);
        }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = StageId> {
        self.ids.into_iter().flatten()
    }

    /// The first stage in the lowest four bits.
    pub(crate) fn to_codec(self) -> CodecId {
        let ids = self.iter().enumerate();
        CodecId(ids.fold(0, |codec, (nth, id)| codec | u16::from(id.number()) << (4 * nth)))
    }

    /// # Errors
    /// `Unsupported`: not the id of a chain.
    pub(crate) fn from_codec(codec: CodecId) -> Result<Self, Error> {
        let mut ids = StageIds::default();
        let mut left = codec.0;
        while left != 0 {
            let Some(id) = StageId::from_number((left & 0x0f) as u8) else {
                return Err(Error::unsupported(format!("codec {:#06x} is no chain", codec.0)));
            };
            ids.push(id);
            left >>= 4;
        }
        Ok(ids)
    }
}

/// Whether a chunk of this codec decodes to other bytes than were encoded.
pub fn is_lossy(codec: CodecId) -> bool {
    stages(codec).any(StageId::is_lossy)
}

/// The names of a chunk's stages in the order in which they were applied, such as
/// `["bf16-split", "aes-256-gcm"]`. Stages that this build lacks are named by their number.
pub fn stage_names(codec: CodecId) -> Vec<String> {
    stages(codec).map(|id| id.to_string()).collect()
}

fn stages(codec: CodecId) -> impl Iterator<Item = StageId> {
    let numbers = (0..STAGES_MAX).map(move |nth| (codec.0 >> (4 * nth) & 0x0f) as u8);
    // 0 is no stage.
    numbers.filter_map(StageId::from_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_codec_is_lossy_by_any_of_its_stages() {
        for (codec, lossy) in [(0, false), (0x432, false), (0x45, true), (0x26, true), (0xe, false)]
        {
            assert_eq!(is_lossy(CodecId(codec)), lossy, "{codec:#x}");
        }
    }
}
