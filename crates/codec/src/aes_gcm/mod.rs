//! Encryption with AES-GCM: our own frame, its keys, and LMCache's frame.

mod cipher;
mod keyring;
mod lmcache_frame;
#[cfg(test)]
mod lmcache_frame_tests;
mod master_key;
mod stage;

pub use self::keyring::Keyring;
pub use self::lmcache_frame::{LMCACHE_AES_OVERHEAD, LmcacheAesGcm, LmcacheAesKey};
pub use self::master_key::{CHUNKS_PER_KEY_MAX, MasterKey, SECRET_LEN_MIN};
pub use self::stage::{AES_256_GCM_OVERHEAD, Aes256Gcm};
