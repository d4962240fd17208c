//! The 16 bytes at the start of every frame.

use crate::padding::{self, PADDING_AT};
use crate::{Error, StageId};

/// The bytes of a header.
pub(crate) const HEADER_LEN: usize = 16;

/// What the header of a frame says.
///
/// | at | bytes | field |
/// |---|---|---|
/// | 0 | 1 | number of the stage |
/// | 1 | 1 | version of the stage's format |
/// | 2 | 1 | parameter of the stage |
/// | 3 | 1 | number of zeros behind the frame; 0 where another stage follows |
/// | 4 | 4 | id of the key, little-endian; 0 for stages without keys |
/// | 8 | 8 | raw length, little-endian |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) stage: StageId,
    pub(crate) version: u8,
    pub(crate) parameter: u8,
    pub(crate) key_id: u32,
    pub(crate) raw_len: usize,
}

impl FrameHeader {
    /// The header of a stage without parameter and key.
    pub(crate) fn new(stage: StageId, version: u8, raw_len: usize) -> Self {
        FrameHeader { stage, version, parameter: 0, key_id: 0, raw_len }
    }

    /// The header without padding, which is counted once the frame is whole.
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..3].copy_from_slice(&[self.stage.number(), self.version, self.parameter]);
        bytes[4..8].copy_from_slice(&self.key_id.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.raw_len as u64).to_le_bytes());
        bytes
    }

    /// Reads the header of a frame of `stage` in a version up to `newest`, and returns it with the
    /// bytes after it, without padding.
    ///
    /// # Errors
    /// `Corrupt`: too short, another stage, or no zeros where padding must be. `Unsupported`: an
    /// unknown version.
    pub(crate) fn read(
        stored: &[u8],
        stage: StageId,
        newest: u8,
    ) -> Result<(FrameHeader, &[u8]), Error> {
        let Some((bytes, payload)) = stored.split_first_chunk::<HEADER_LEN>() else {
            return Err(Error::corrupt(format!("{} bytes are no frame", stored.len())));
        };
        let header = Self::from_bytes(bytes, stage, newest)?;
        let payload = padding::strip(payload, bytes[PADDING_AT]).ok_or_else(|| {
            let number = stage.number();
            Error::corrupt(format!("a frame of stage {number} without its padding"))
        })?;
        Ok((header, payload))
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Corrupt`: another stage. `Unsupported`: an unknown version.
    pub(crate) fn from_bytes(
        bytes: &[u8; HEADER_LEN],
        stage: StageId,
        newest: u8,
    ) -> Result<FrameHeader, Error> {
        let number = stage.number();
        if bytes[0] != number {
            return Err(Error::corrupt(format!("no frame of stage {number}")));
        }
        let version = bytes[1];
        if !(1..=newest).contains(&version) {
            let why =
                format!("a frame of stage {number} has version {version}; known up to {newest}");
            return Err(Error::unsupported(why));
        }
        let [_, _, parameter, _, k0, k1, k2, k3, length @ ..] = *bytes;
        let raw_len = usize::try_from(u64::from_le_bytes(length))
            .map_err(|_| Error::corrupt("a frame announces more bytes than memory can have"))?;
        let key_id = u32::from_le_bytes([k0, k1, k2, k3]);
        Ok(FrameHeader { stage, version, parameter, key_id, raw_len })
    }

    /// As `read`, for a stage without parameter and key and exactly `raw_len` raw bytes: the payload.
    pub(crate) fn payload(
        stored: &[u8],
        stage: StageId,
        newest: u8,
        raw_len: usize,
    ) -> Result<&[u8], Error> {
        let (header, payload) = Self::read(stored, stage, newest)?;
        header.expect_raw_len(raw_len)?;
        if (header.parameter, header.key_id) != (0, 0) {
            return Err(Error::corrupt("a frame's header has values where zeros must be"));
        }
        Ok(payload)
    }

    pub(crate) fn expect_raw_len(&self, raw_len: usize) -> Result<(), Error> {
        if self.raw_len != raw_len {
            let why = format!("a frame of {} raw bytes, not {raw_len}", self.raw_len);
            return Err(Error::corrupt(why));
        }
        Ok(())
    }
}
