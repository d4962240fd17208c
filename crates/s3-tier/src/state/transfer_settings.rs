//! How chunks move between memory and bucket: parts, ranges, conditions and storage class.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kvtier_s3::{Client, Conditional, FeatureSupport, Provider};
use tokio::sync::Semaphore;

use crate::config::TierConfig;

/// Saves with an unknown outcome that are checked at a time; a listing finds the others.
const OUTCOME_CHECKS_MAX: usize = 64;

/// Settings of loads and saves, and what the store has shown about conditional PUTs.
#[derive(Debug)]
pub struct TransferSettings {
    /// Whether a PUT asks the store to keep an existing object.
    pub if_absent: AtomicBool,
    /// Whether the store has yet to be asked if it honours that.
    pub if_absent_unknown: bool,
    /// Whether the store accepts such PUTs.
    pub conditions: FeatureSupport,
    pub multipart_above_bytes: u64,
    pub ranges_above_bytes: u64,
    pub part_bytes: usize,
    pub parts_max: usize,
    pub space_wait_max: Duration,
    pub storage_class: Option<String>,
    pub provider: Provider,
    /// Limits the HEADs for saves whose outcome is unknown.
    pub outcome_checks: Semaphore,
}

impl TransferSettings {
    pub fn new(config: &TierConfig, client: &Client) -> Self {
        let provider = client.endpoint().provider();
        let conditional = provider.conditional();
        TransferSettings {
            if_absent: AtomicBool::new(config.if_absent && conditional == Conditional::Honoured),
            conditions: FeatureSupport::conditional_puts(),
            if_absent_unknown: config.if_absent && conditional == Conditional::Unknown,
            multipart_above_bytes: config.multipart_above_bytes,
            ranges_above_bytes: config.ranges_above_bytes,
            part_bytes: config.part_bytes,
            parts_max: config.parts_max,
            space_wait_max: config.space_wait_max,
            storage_class: config.storage_class.clone(),
            provider,
            outcome_checks: Semaphore::new(OUTCOME_CHECKS_MAX),
        }
    }
}
