//! What is checked and kept of a request that uploads an object or a part.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::wire::WireRequest;

/// The headers that come back with an object.
pub fn kept_headers(request: &WireRequest) -> Vec<(String, String)> {
    let kept = |name: &str| {
        name.starts_with("x-amz-meta-")
            || (name.starts_with("x-amz-checksum-") && name != "x-amz-checksum-algorithm")
    };
    request.headers.iter().filter(|(name, _)| kept(name)).cloned().collect()
}

/// Whether a checksum came with the body and is not its own.
pub fn sum_is_wrong(request: &WireRequest, body: &[u8]) -> bool {
    use crc_fast::CrcAlgorithm::{Crc32Iscsi, Crc64Nvme};
    let crc = |algorithm, width: usize| {
        STANDARD.encode(&crc_fast::checksum(algorithm, body).to_be_bytes()[8 - width..])
    };
    let differs = |name: &str, sum: &dyn Fn() -> String| {
        request.header(name).is_some_and(|declared| declared != sum())
    };
    differs("x-amz-checksum-crc32c", &|| crc(Crc32Iscsi, 4))
        || differs("x-amz-checksum-crc64nvme", &|| crc(Crc64Nvme, 8))
        || differs("x-amz-checksum-sha256", &|| STANDARD.encode(Sha256::digest(body)))
        || differs("content-md5", &|| STANDARD.encode(md5::Md5::digest(body)))
}
