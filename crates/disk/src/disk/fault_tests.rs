//! What the status says of a fault: also what caused it.

use std::sync::Arc;

use kvtier_codec::{Chain, Decoder, TierEncoding, stage_by_name};
use kvtier_core::{Ctx, ErrorKind, ManualClock, Namespace, Observe as _, Save, Tier as _};
use kvtier_key::{Digest, Key};
use kvtier_os::simulated::Call;

use super::tests::{Idle, LEN, in_time, key, open};
use crate::{Disk, DiskConfig, fake_process};

#[test]
fn a_fault_of_the_manifest_has_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    // Only without partial chunks a length says something of others.
    let namespace = Namespace::new("t", Digest::default()).with_partial(false);
    let key = Key::new(Arc::new(namespace), key(1).id().clone());
    let _process = fake_process::enter(|call| match call {
        Call::Rename(_, to) if to.path.ends_with("manifest") => Err(nix::Error::EIO),
        _ => Ok(()),
    });
    disk.shared.learn_geometry(&key, LEN as u64).unwrap();
    let reasons = disk.status().reasons;
    let fault = reasons.iter().find(|reason| reason.starts_with("last fault: ")).unwrap();
    assert!(fault.contains("cannot note the geometry of chunks"), "{fault}");
    assert!(fault.contains("Input/output error (os error 5)"), "{fault}");
}

#[test]
fn a_save_that_cannot_begin_to_encode_is_a_fault() {
    let (time, dir) = (ManualClock::new(), tempfile::tempdir().unwrap());
    let mut config = DiskConfig::new(dir.path(), 1 << 20);
    config.clock = time.clock();
    let chain = Chain::new(vec![stage_by_name("lz4").unwrap()]).unwrap();
    config.encoding = Arc::new(TierEncoding::new(chain, Decoder::new()));
    let disk = Disk::open(config, Idle).unwrap();
    // The path names another directory, which has no manifest to note encodings in.
    std::fs::rename(dir.path().join(".kvtier"), dir.path().join("elsewhere")).unwrap();
    disk.shared.data_dir.look_anew_for_encoded();
    let ctx = Ctx::within_on(&time.clock(), std::time::Duration::from_secs(1 << 20));
    let save = Save { key: key(1), from: vec![vec![1; LEN].into()] };
    let save = disk.save(&ctx, vec![save]);
    in_time(&time, "the save is answered", || save.is_done());
    let error = save.wait().remove(0).result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
    let fault = disk.shared.last_fault.get().unwrap();
    assert!(fault.starts_with("save: ") && fault.contains("No such file or directory"), "{fault}");
}
