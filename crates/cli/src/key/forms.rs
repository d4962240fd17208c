//! What the forms of names are called on the command line.

use kvtier::core::key::names::NameForm;

use crate::BadInput;

/// The names of all forms, for help and errors.
pub const ALL: &str = "mp-native, mp-3-field, mp-s3, mp-fs, mp-fs-native, mp-raw-block, text, s3, fs-connector, local-disk, gds, gds-sidecar, \
                       gds-weka, gds-weka-sidecar, vllm-fs; mp-s3 and s3 take a prefix: s3:PREFIX";

/// Every form, S3's without a prefix.
pub fn all() -> Vec<NameForm> {
    let prefix = String::new;
    let gds = |weka, sidecar| NameForm::Gds { weka, sidecar };
    vec![
        NameForm::MpNative,
        NameForm::Mp3Field,
        NameForm::S3Mp { prefix: prefix() },
        NameForm::Fs,
        NameForm::FsNative,
        NameForm::RawBlock,
        NameForm::Text,
        NameForm::S3NonMp { prefix: prefix() },
        NameForm::FsConnector,
        NameForm::LocalDisk,
        gds(false, false),
        gds(false, true),
        gds(true, false),
        gds(true, true),
        NameForm::VllmFs,
    ]
}

/// The form's name, which [`parse`] reads.
pub fn name(form: &NameForm) -> String {
    let prefixed = |name: &str, prefix: &str| {
        if prefix.is_empty() { name.into() } else { format!("{name}:{prefix}") }
    };
    match form {
        NameForm::MpNative => "mp-native".into(),
        NameForm::Mp3Field => "mp-3-field".into(),
        NameForm::S3Mp { prefix } => prefixed("mp-s3", prefix),
        NameForm::Fs => "mp-fs".into(),
        NameForm::FsNative => "mp-fs-native".into(),
        NameForm::RawBlock => "mp-raw-block".into(),
        NameForm::Text => "text".into(),
        NameForm::S3NonMp { prefix } => prefixed("s3", prefix),
        NameForm::FsConnector => "fs-connector".into(),
        NameForm::LocalDisk => "local-disk".into(),
        NameForm::Gds { weka, sidecar } => {
            ["gds", if *weka { "-weka" } else { "" }, if *sidecar { "-sidecar" } else { "" }]
                .concat()
        }
        NameForm::VllmFs => "vllm-fs".into(),
        other => format!("{other:?}"),
    }
}

/// Reads a form's name, with a prefix where the form has one.
pub fn parse(text: &str) -> Result<NameForm, BadInput> {
    let (bare, prefix) = text.split_once(':').unwrap_or((text, ""));
    let prefix = prefix.trim_matches('/').to_owned();
    let found = all().into_iter().find(|form| name(form) == bare);
    match found {
        Some(NameForm::S3Mp { .. }) => Ok(NameForm::S3Mp { prefix }),
        Some(NameForm::S3NonMp { .. }) => Ok(NameForm::S3NonMp { prefix }),
        // A prefix for a form that has none would be ignored in silence.
        Some(form) if prefix.is_empty() => Ok(form),
        _ => Err(BadInput(format!("no form {text:?}; choose one of {ALL}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_a_name_of_its_own_that_reads_back() {
        for form in all() {
            assert_eq!(parse(&name(&form)).unwrap(), form);
            assert!(ALL.contains(&name(&form)));
        }
        let prefixed = NameForm::S3NonMp { prefix: "kv/cache".into() };
        assert_eq!(parse("s3:/kv/cache/").unwrap(), prefixed);
        assert_eq!(parse(&name(&prefixed)).unwrap(), prefixed);
        for bad in ["", "fs", "text:x", "gds:"] {
            assert_eq!(parse(bad).is_ok(), bad == "gds:", "{bad}");
        }
    }
}
