//! The format of an epoch's object in the bucket: which node made it, or that its holder ended.

/// The largest object that is read.
pub const BYTES_MAX: usize = 4096;
/// Content of the object of a holder that ended. Its length identifies it in a listing.
pub const FREE: &[u8] = b"free\n";

/// The object of a claim: the node, and the number of the node's claim.
pub fn encode(node: &str, claim: u64) -> Vec<u8> {
    format!("kvtier lease\nformat: 1\nnode: {node}\nclaim: {claim}\n").into_bytes()
}

/// The node in an object, for reports.
pub fn maker(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?.strip_prefix("kvtier lease\n")?;
    text.lines().find_map(|line| line.strip_prefix("node: ")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_one_is_this() {
        let golden = include_bytes!("golden/lease-v1.txt");
        assert_eq!(encode("host.12.1763726400000.0.1a2b3c4d", 3), golden);
        assert_eq!(maker(golden).as_deref(), Some("host.12.1763726400000.0.1a2b3c4d"));
        assert_eq!((maker(b"free\n"), maker(b"\xff"), maker(b"")), (None, None, None));
        assert!(
            encode("", 0).len() > FREE.len(),
            "a held lease is never as short as one that is free"
        );
    }
}
