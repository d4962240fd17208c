//! Writes the tables of docs/CONFIG.md.

use std::fmt::Write as _;

use super::{Role, Section, Setting, all};

/// The line of docs/CONFIG.md before what is written from the table.
pub const BEGIN: &str = "<!-- from the table in code: begin -->";
/// The line after it.
pub const END: &str = "<!-- from the table in code: end -->";

/// The part of docs/CONFIG.md that the table says, from [`BEGIN`] to [`END`].
pub fn document() -> String {
    let mut out = format!("{BEGIN}\n");
    for (section, title) in SECTIONS {
        write_section(&mut out, *section, title);
    }
    out + "\n" + END
}

const SECTIONS: &[(Section, &str)] = &[
    (Section::Stack, "Native form: beside `tiers`"),
    (Section::Level, "Native form: every tier, as a part of the stack"),
    (Section::Of("host"), "Native form: tier `host`"),
    (Section::Of("file"), "Native form: tier `file`"),
    (Section::Of("gds"), "Native form: tier `gds`, besides the settings of `file`"),
    (Section::Of("s3"), "Tier and adapter `s3`"),
    (Section::Adapter, "Every tier and adapter but `host`, `file` and `gds`"),
    (Section::Of("eviction"), "The object `eviction`"),
    (Section::Of("fs"), "Tier and adapter `fs`"),
    (Section::Of("fs_native"), "Tier and adapter `fs_native`"),
    (Section::Of("raw_block"), "Tier and adapter `raw_block`"),
    (Section::Of("plugin"), "Adapter `plugin`"),
    (Section::Of("native_plugin"), "Adapter `native_plugin`"),
    (Section::Engine, "LMCache's file and environment"),
    (Section::Porting, "LMCache's file, the form of its guide for porting to S3"),
    (Section::Extra, "LMCache's `extra_config`"),
];

fn write_section(out: &mut String, section: Section, title: &str) {
    let _ = write!(
        out,
        "\n### {title}\n\n| key | takes | default | meaning | here |\n|---|---|---|---|---|\n"
    );
    for key in all().filter(|key| key.section == section) {
        let _ = writeln!(out, "{}", row(key));
    }
}

fn row(key: &Setting) -> String {
    let default = match key.default_here() {
        "" if key.name == "relative_tmp_dir" => "empty".to_owned(),
        "" => "required".to_owned(),
        "null" => "-".to_owned(),
        text => format!("`{text}`"),
    };
    let here = match key.role {
        Role::Used | Role::Extra | Role::Plugin => "used",
        Role::Engine => "LMCache's own",
        Role::Ignored => "no effect",
        Role::Refused => "refused",
        Role::Gds => "GDS tier",
    };
    format!("| `{}` | {} | {default} | {} | {here} |", key.name, key.kind.takes(), key.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_in_a_section_and_no_name_is_twice_in_one() {
        for key in all() {
            assert!(SECTIONS.iter().any(|(section, _)| *section == key.section), "{}", key.name);
            assert_eq!(
                all()
                    .filter(|other| other.section == key.section && other.name == key.name)
                    .count(),
                1,
                "{}",
                key.name
            );
        }
    }
}
