//! Which stages may follow one another: the rule for chains that are set and for codecs that are read.

use crate::{Stage, StageKind};

/// Checks the stages of a chain, the first applied first. An error says what is wrong.
pub(crate) fn check_order<'a>(stages: impl Iterator<Item = &'a dyn Stage>) -> Result<(), String> {
    let mut seen = 0u16;
    let mut last: Option<&dyn Stage> = None;
    for stage in stages {
        // Numbers are at most 15.
        let bit = 1 << stage.id().number();
        if seen & bit != 0 {
            return Err(format!("encoding {} twice", stage.id()));
        }
        seen |= bit;
        if let Some(last) = last.filter(|last| !may_follow(stage.kind(), last.kind())) {
            return Err(format!(
                "encoding {} after {}: set those that read elements first, then compression, then \
                 encryption",
                stage.id(),
                last.id()
            ));
        }
        last = Some(stage);
    }
    Ok(())
}

fn may_follow(kind: StageKind, last: StageKind) -> bool {
    match kind {
        StageKind::Compression => last <= StageKind::Compression,
        kind => last < kind,
    }
}
