//! Names that read back, names that do not, and names of unknown form.
#![allow(clippy::unwrap_used)]

use kvtier_key::names::{Loss, NAME_BYTES_MAX, NameForm, Parsed, detect};
use kvtier_key::{
    CacheEngineKey, ChunkHash, DType, EngineHash, KeyId, KvRank, MODEL_BYTES_MAX, ObjectKey, PyInt,
};
use proptest::prelude::*;

fn object(model: &str) -> KeyId {
    ObjectKey::new(model, KvRank(0x0201_0201), 0, ChunkHash::new(&[0xab; 32]), "").unwrap().into()
}

fn engine(model: &str) -> KeyId {
    CacheEngineKey::new(model, 2, 1, EngineHash::Int(PyInt::from(0x1a2b_3c4du64)), DType::BFloat16)
        .unwrap()
        .into()
}

fn s3_mp(prefix: &str) -> NameForm {
    NameForm::S3Mp { prefix: prefix.into() }
}

fn s3_non_mp(prefix: &str) -> NameForm {
    NameForm::S3NonMp { prefix: prefix.into() }
}

const GDS: NameForm = NameForm::Gds { weka: false, sidecar: false };

fn forms() -> Vec<NameForm> {
    let gds = [(false, false), (false, true), (true, false), (true, true)];
    let gds = gds.map(|(weka, sidecar)| NameForm::Gds { weka, sidecar });
    let prefixed =
        ["", "pre", "a b/c"].into_iter().flat_map(|prefix| [s3_mp(prefix), s3_non_mp(prefix)]);
    let plain = [
        NameForm::MpNative,
        NameForm::Mp3Field,
        NameForm::Fs,
        NameForm::FsNative,
        NameForm::RawBlock,
        NameForm::Text,
    ];
    let files = [NameForm::FsConnector, NameForm::LocalDisk];
    plain.into_iter().chain(files).chain(gds).chain(prefixed).collect()
}

#[test]
fn every_form_spells_as_documented() {
    let hash = "ab".repeat(32);
    let object = object("org/m-1");
    let engine = engine("org/m_1");
    let text = "org/m_1@2@1@1a2b3c4d@bfloat16";
    let spelled = [
        (NameForm::MpNative, &object, format!("org/m-1@02010201@0@{hash}")),
        (NameForm::Mp3Field, &object, format!("org/m-1@02010201@{hash}")),
        (s3_mp(""), &object, format!("/org/m-1%4002010201%400%40{hash}")),
        (s3_mp("a b/c"), &object, format!("/a%20b/c/org/m-1%4002010201%400%40{hash}")),
        (NameForm::Fs, &object, format!("org-SEP-m-1@0x02010201@0@{hash}.data")),
        (NameForm::FsNative, &object, format!("org-SEP-m-1@0x02010201@0@{hash}.data")),
        (NameForm::RawBlock, &object, format!("org%2Fm-1@0x02010201@0@{hash}")),
        (NameForm::Text, &engine, text.into()),
        (s3_non_mp(""), &engine, "/org_m_1%402%401%401a2b3c4d%40bfloat16".into()),
        (s3_non_mp("pre"), &engine, "/pre/org_m_1%402%401%401a2b3c4d%40bfloat16".into()),
        (NameForm::FsConnector, &engine, "org-SEP-m_1@2@1@1a2b3c4d@bfloat16.data".into()),
        (NameForm::LocalDisk, &engine, "org-m_1@2@1@1a2b3c4d@bfloat16.pt".into()),
        (GDS, &engine, "43/90/org%2Fm_1%402%401%401a2b3c4d%40bfloat16.kvcache.safetensors".into()),
    ];
    for (form, id, name) in spelled {
        assert_eq!(form.format_lossy(id), Ok(name), "{form:?}");
    }
}

#[test]
fn the_loss_of_a_name_is_reported() {
    let lossy = |form: NameForm, id: &KeyId, loss: Loss| {
        let name = form.format_lossy(id).unwrap();
        assert_eq!(form.parse(&name).unwrap().loss(), Some(loss), "{name}");
        form.parse(&name).unwrap().into_key()
    };
    // A slash is gone for good: the strict name is refused, the lossy one reads as another key.
    assert_eq!(lossy(s3_non_mp(""), &engine("a/b"), Loss::SlashAsUnderscore), engine("a_b"));
    assert_eq!(lossy(s3_non_mp(""), &engine("a_b"), Loss::SlashAsUnderscore), engine("a_b"));
    assert!(s3_non_mp("").format(&engine("a/b")).is_err());
    assert!(s3_non_mp("").format(&engine("a_b")).is_ok());
    assert_eq!(lossy(NameForm::LocalDisk, &engine("a/b"), Loss::SlashAsDash), engine("a-b"));
    assert!(NameForm::LocalDisk.format(&engine("a/b")).is_err());
    for (form, id) in [
        (NameForm::Fs, object as fn(&str) -> KeyId),
        (NameForm::FsNative, object),
        (NameForm::FsConnector, engine),
    ] {
        assert_eq!(lossy(form.clone(), &id("a/b"), Loss::SlashAsSep), id("a/b"));
        assert_eq!(lossy(form.clone(), &id("a-SEP-b"), Loss::SlashAsSep), id("a/b"));
        assert!(form.format(&id("a/b")).is_ok());
        assert!(form.format(&id("a-SEP-b")).is_err());
        assert!(form.format(&id("a-SEP/b")).is_err(), "the first -SEP- is not the slash");
        assert!(matches!(form.parse(&form.format(&id("plain")).unwrap()), Ok(Parsed::Lossless(_))));
    }
    assert_eq!(NameForm::MpNative.parse("m@ff@0@AB").unwrap().loss(), Some(Loss::Spelling));
    assert_eq!(NameForm::Text.parse("m@1@0@0xff@half").unwrap().loss(), Some(Loss::Spelling));
}

#[test]
fn keys_that_text_cannot_carry_are_refused() {
    let bytes = EngineHash::Bytes(ChunkHash::new(&[1, 2]));
    let bytes: KeyId = CacheEngineKey::new("m", 1, 0, bytes, DType::Half).unwrap().into();
    assert!(NameForm::Text.format(&bytes).is_err() && NameForm::Text.format_lossy(&bytes).is_ok());
    assert!(NameForm::Text.format(&engine("a@b")).is_err());
    assert!(NameForm::Mp3Field.format(&object("m")).is_ok());
    assert!(
        NameForm::MpNative.format(&engine("m")).is_err()
            && NameForm::Text.format(&object("m")).is_err()
    );
    let KeyId::Object(mut key) = object("m") else { unreachable!() };
    (key.group, key.salt) = (1, "s".into());
    assert!(
        NameForm::Mp3Field.format_lossy(&key.clone().into()).is_err(),
        "no place for group and salt"
    );
    key.salt = "a@b".into();
    assert!(
        NameForm::MpNative.format_lossy(&key.into()).is_err(),
        "checked again, for keys put together by hand"
    );
}

#[test]
fn names_too_long_for_their_store_are_refused() {
    let long = "m".repeat(240);
    assert!(
        NameForm::Fs.format(&object(&long)).is_err()
            && NameForm::FsConnector.format(&engine(&long)).is_err()
    );
    assert!(
        NameForm::LocalDisk.format(&engine(&long)).is_err() && GDS.format(&engine(&long)).is_err()
    );
    assert!(NameForm::MpNative.format(&object(&long)).is_ok());
    assert!(s3_mp(&"p".repeat(800)).format(&object(&long)).is_err());
    let model = "m".repeat(MODEL_BYTES_MAX + 1);
    assert!(ObjectKey::new(model, KvRank(0), 0, ChunkHash::new(&[]), "").is_err());
    assert!(
        NameForm::Text.parse(&"m".repeat(100_000)).is_err()
            && detect(&"m".repeat(100_000)).is_empty()
    );
    assert!(NameForm::Fs.format(&object("a\0b")).is_err());
}

#[test]
fn gds_files_are_in_the_directory_of_their_hash() {
    let name = GDS.format(&engine("m")).unwrap();
    let (_, file) = name.rsplit_once('/').unwrap();
    for good in [name.clone(), file.into(), format!("/mnt/gds/{name}")] {
        assert_eq!(GDS.parse(&good).unwrap().into_key(), engine("m"));
    }
    for bad in [format!("44/90/{file}"), format!("/mnt/{file}"), format!("1{name}")] {
        assert!(GDS.parse(&bad).is_err(), "{bad}");
    }
    let out: Vec<KeyId> = ["..", "/x", "a/"]
        .iter()
        .map(|hash| EngineHash::Bytes(ChunkHash::new(hash.as_bytes())))
        .map(|hash| CacheEngineKey::new("m", 1, 0, hash, DType::Half).unwrap().into())
        .collect();
    assert!(out.iter().all(|id| GDS.format_lossy(id).is_err()), "no way out of the directory");
}

#[test]
fn a_name_of_unknown_form_is_explained() {
    let o = object("org/m");
    let e = engine("org/m");
    let only = |name: &str| {
        let found = detect(name);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    };
    for form in
        [NameForm::MpNative, NameForm::Mp3Field, NameForm::Fs, NameForm::RawBlock, s3_mp("")]
    {
        let (found, parsed) = only(&form.format(&o).unwrap());
        assert_eq!((found, parsed.into_key()), (form, o.clone()));
    }
    for form in
        [NameForm::Text, NameForm::FsConnector, GDS, NameForm::Gds { weka: true, sidecar: true }]
    {
        let (found, parsed) = only(&form.format(&e).unwrap());
        assert_eq!((found, parsed.into_key()), (form, e.clone()));
    }
    assert_eq!(only("/pre/fix/org_m%402%401%401a2b3c4d%40bfloat16").0, s3_non_mp("pre/fix"));
    assert_eq!(only("/data/kv/org-m@2@1@1a2b3c4d@bfloat16.pt").1.loss(), Some(Loss::SlashAsDash));
    assert_eq!(only("/data/kv/m@0x-0000001@0@ab.data").0, NameForm::FsNative);
    let both = detect("m@00000001@0@ab@half");
    assert_eq!(both.iter().map(|(form, _)| form.clone()).collect::<Vec<_>>(), [NameForm::MpNative]);
    assert!(detect("").is_empty() && detect("README.md").is_empty() && detect("/").is_empty());
}

prop_compose! {
    fn any_object()(
        model in "[a-zA-Z0-9/_.%é 模-]{0,40}", rank in prop_oneof![any::<i64>(), 0..1i64 << 32], group in any::<u32>(),
        hash in proptest::collection::vec(any::<u8>(), 0..40), salt in "[a-z.%é -]{0,20}", bare in any::<bool>(),
    ) -> KeyId {
        let (group, salt) = if bare { (0, String::new()) } else { (group, salt) };
        ObjectKey::new(model, KvRank(rank), group, ChunkHash::new(&hash), salt).unwrap().into()
    }
}

prop_compose! {
    fn any_engine()(
        model in "[a-zA-Z0-9/_.%é 模-]{0,40}", world in any::<i64>(), worker in 0..9i64, negative in any::<bool>(),
        hash in proptest::collection::vec(any::<u8>(), 0..40), dtype in 0..14usize, layer in proptest::option::of(0..99i64),
        tags in proptest::collection::vec(("[a-z/_ é-]{0,5}", "[a-z%/_-]{0,5}"), 0..3), bytes in proptest::bool::weighted(0.1),
    ) -> KeyId {
        let number = EngineHash::Int(PyInt::from_be_bytes(negative, &hash).unwrap());
        let hash = if bytes { EngineHash::Bytes(ChunkHash::new(&hash)) } else { number };
        let key = CacheEngineKey::new(model, world, worker, hash, DType::all().nth(dtype).unwrap()).unwrap();
        let key = key.with_tags(tags).unwrap();
        layer.map_or_else(|| key.clone().into(), |layer| key.layer(layer).into())
    }
}

/// A name is given only to a key that it reads back as; `Lossless` is answered only where the name
/// is that key's.
fn check_round_trips(id: &KeyId) -> Result<(), TestCaseError> {
    for form in forms() {
        let Ok(name) = form.format_lossy(id) else { continue };
        let parsed = form.parse(&name);
        match form.format(id) {
            Ok(strict) => {
                prop_assert_eq!(&strict, &name);
                prop_assert_eq!(parsed.as_ref().unwrap().key(), id);
                // Where no prefix was said, one is read as the beginning of the model.
                let is_prefixless = form != s3_mp("pre") && form != s3_mp("a b/c");
                prop_assert!(
                    !is_prefixless || detect(&name).iter().any(|(_, parsed)| parsed.key() == id),
                    "{}",
                    name
                );
            }
            Err(_) => prop_assert_ne!(parsed.as_ref().ok().map(Parsed::key), Some(id)),
        }
        if let Ok(Parsed::Lossless(key)) = parsed {
            prop_assert_eq!(form.format(&key).unwrap(), name);
        }
    }
    Ok(())
}

#[test]
fn a_path_that_is_too_long_is_no_name() {
    let file = NameForm::Fs.format(&object("m")).unwrap();
    let path = |len: usize| format!("{}/{file}", "d".repeat(len - 1 - file.len()));
    assert_eq!(detect(&path(NAME_BYTES_MAX))[0].0, NameForm::Fs);
    assert_eq!(detect(&path(NAME_BYTES_MAX + 1)), []);
}

proptest! {
    #[test]
    fn object_keys_read_back_from_every_name(id in any_object()) {
        for form in [NameForm::MpNative, s3_mp(""), s3_mp("p"), NameForm::RawBlock] {
            let name = form.format(&id).unwrap();
            prop_assert_eq!(form.parse(&name), Ok(Parsed::Lossless(id.clone())));
        }
        check_round_trips(&id)?;
    }

    #[test]
    fn engine_keys_read_back_from_every_name(id in any_engine()) {
        check_round_trips(&id)?;
    }

    #[test]
    fn any_text_is_answered(text in "[m@0-9a-fx%/_. -]{0,60}(@half)?(\\.data|\\.pt|\\.weka1)?|\\PC{0,60}") {
        for form in forms() {
            if let Ok(Parsed::Lossless(key)) = form.parse(&text) {
                prop_assert_eq!(form.format(&key).unwrap(), text.as_str());
            }
        }
        detect(&text);
    }
}

#[test]
fn a_name_that_lmcache_would_spell_otherwise_is_found_if_nothing_better_is() {
    let found = detect("m@1@0@0xff@half");
    assert!(!found.is_empty());
    assert!(found.iter().all(|(_, parsed)| parsed.loss() == Some(Loss::Spelling)), "{found:?}");
}
