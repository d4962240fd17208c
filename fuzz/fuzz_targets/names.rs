//! Every parser of names answers every text; what it calls lossless is exactly the name of the key it answers.
#![no_main]

use kvtier_key::names::{Form, Parsed, detect};
use libfuzzer_sys::fuzz_target;

fn forms() -> Vec<Form> {
    let gds = [(false, false), (false, true), (true, false), (true, true)];
    let gds = gds.map(|(weka, sidecar)| Form::Gds { weka, sidecar });
    let paths = ["", "p"].map(String::from);
    let paths = paths.into_iter().flat_map(|prefix| [Form::S3Mp { prefix: prefix.clone() }, Form::S3NonMp { prefix }]);
    let plain = [Form::MpNative, Form::Mp3Field, Form::Fs, Form::FsNative, Form::RawBlock, Form::Text];
    plain.into_iter().chain([Form::FsConnector, Form::LocalDisk]).chain(gds).chain(paths).collect()
}

fuzz_target!(|name: &str| {
    for form in forms() {
        match form.parse(name) {
            Ok(Parsed::Lossless(key)) => assert_eq!(form.format(&key).as_deref(), Ok(name), "{form:?}"),
            Ok(Parsed::Lossy { key, .. }) => drop(form.format_lossy(&key)),
            Err(_) => {}
        }
    }
    detect(name);
});
