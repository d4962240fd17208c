//! Parsers of names: no text makes one panic, and a name parsed as lossless is exactly the name of its key.
#![no_main]

use kvtier_key::VllmRunConfig;
use kvtier_key::names::{NameForm, Parsed, detect};
use libfuzzer_sys::fuzz_target;

fn forms() -> Vec<NameForm> {
    let gds = [(false, false), (false, true), (true, false), (true, true)];
    let gds = gds.map(|(weka, sidecar)| NameForm::Gds { weka, sidecar });
    let paths = ["", "p"].map(String::from);
    let paths = paths.into_iter().flat_map(|prefix| {
        [NameForm::S3Mp { prefix: prefix.clone() }, NameForm::S3NonMp { prefix }]
    });
    let plain = [
        NameForm::MpNative,
        NameForm::Mp3Field,
        NameForm::Fs,
        NameForm::FsNative,
        NameForm::RawBlock,
        NameForm::Text,
    ];
    plain
        .into_iter()
        .chain([NameForm::FsConnector, NameForm::LocalDisk, NameForm::VllmFs])
        .chain(gds)
        .chain(paths)
        .collect()
}

fuzz_target!(|name: &str| {
    for form in forms() {
        match form.parse(name) {
            Ok(Parsed::Lossless(key)) => {
                assert_eq!(form.format(&key).as_deref(), Ok(name), "{form:?}")
            }
            Ok(Parsed::Lossy { key, .. }) => drop(form.format_lossy(&key)),
            Err(_) => {}
        }
    }
    if let Ok(config) = VllmRunConfig::from_json(name) {
        assert_eq!(VllmRunConfig::from_json(config.text()), Ok(config));
    }
    detect(name);
});
