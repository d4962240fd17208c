use std::time::Duration;

use super::Style;
use crate::checksum::Checksum;

/// Whose service it is, and so which ways it has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Provider {
    /// Amazon S3.
    Aws,
    /// Amazon S3 Express One Zone.
    Express,
    /// CoreWeave AI Object Storage, also through its cache on each node.
    Coreweave,
    /// Ceph RGW.
    Ceph,
    /// OpenStack Swift with s3api.
    Swift,
    /// Garage.
    Garage,
    /// MinIO.
    Minio,
    /// Google Cloud Storage by its XML interface.
    Gcs,
    /// Cloudflare R2.
    R2,
    /// Any other: only what all have in common.
    Other,
}

/// What a store makes of `If-None-Match: *` on a PUT.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Conditional {
    /// It refuses to overwrite.
    Honoured,
    /// It overwrites all the same.
    Ignored,
    /// It refuses the request.
    Refused,
    /// Unknown: probe it.
    Unknown,
}

impl Provider {
    /// Whether it is Amazon's, where the role of an instance signs.
    pub fn is_aws(self) -> bool {
        matches!(self, Provider::Aws | Provider::Express)
    }

    /// All of them.
    pub const ALL: [Provider; 10] = [
        Provider::Aws,
        Provider::Express,
        Provider::Coreweave,
        Provider::Ceph,
        Provider::Swift,
        Provider::Garage,
        Provider::Minio,
        Provider::Gcs,
        Provider::R2,
        Provider::Other,
    ];

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Aws => "aws",
            Provider::Express => "express",
            Provider::Coreweave => "coreweave",
            Provider::Ceph => "ceph",
            Provider::Swift => "swift",
            Provider::Garage => "garage",
            Provider::Minio => "minio",
            Provider::Gcs => "gcs",
            Provider::R2 => "r2",
            Provider::Other => "other",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Provider::ALL.into_iter().find(|provider| provider.name() == name)
    }

    /// Where the bucket's name goes, unless the host is an address.
    pub fn style(self) -> Style {
        match self {
            Provider::Aws | Provider::Express | Provider::Coreweave => Style::Virtual,
            _ => Style::Path,
        }
    }

    /// The checksum it verifies and returns.
    pub fn checksum(self) -> Checksum {
        match self {
            Provider::Aws | Provider::Express | Provider::Garage => Checksum::Crc32c,
            _ => Checksum::None,
        }
    }

    /// What it makes of a conditional PUT.
    pub fn conditional(self) -> Conditional {
        match self {
            Provider::Aws | Provider::Express | Provider::Ceph | Provider::Minio | Provider::R2 => {
                Conditional::Honoured
            }
            Provider::Garage => Conditional::Ignored,
            Provider::Swift | Provider::Gcs => Conditional::Refused,
            Provider::Coreweave | Provider::Other => Conditional::Unknown,
        }
    }

    /// The region to sign for where none is set; `None` where one must be.
    pub fn region(self) -> Option<&'static str> {
        match self {
            Provider::Gcs | Provider::R2 => Some("auto"),
            Provider::Garage => Some("garage"),
            Provider::Aws | Provider::Express => None,
            _ => Some("us-east-1"),
        }
    }

    /// How long a connection may be idle, less than the server's own limit.
    pub fn idle_max(self) -> Duration {
        match self {
            Provider::Aws | Provider::Express => Duration::from_secs(4),
            _ => Duration::from_secs(15),
        }
    }

    /// Whether it takes a list of keys to delete.
    pub fn deletes_many(self) -> bool {
        self != Provider::Gcs
    }

    /// Whether each of its answers has an id: one without is not its own.
    pub(crate) fn names_answers(self) -> bool {
        matches!(self, Provider::Aws | Provider::Express | Provider::Ceph | Provider::Minio)
    }

    /// Whether it refuses `content-md5` and wants a checksum header in its place.
    pub(crate) fn refuses_md5(self) -> bool {
        self == Provider::Express
    }
}
