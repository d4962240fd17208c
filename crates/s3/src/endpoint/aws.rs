//! The names of AWS's hosts for S3: what each says of bucket and region, and which other names may
//! stand for it.

/// What kind of name a host has. Only names of the same kind may stand for each other: each of the
/// special ones is chosen for what it promises (validated cryptography, a private network, IPv6),
/// which another name does not keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// `s3.region`, and its older spellings.
    Regional,
    /// `s3.dualstack.region`.
    DualStack,
    /// `s3-accelerate`: one name for all regions.
    Accelerate,
    /// `s3-fips...`.
    Fips,
    /// `bucket.vpce-id.s3.region.vpce`: an endpoint in a private network, which leads to one
    /// region.
    PrivateLink,
    /// `s3express-zone.region`.
    Express,
    /// Others that begin like S3's, such as access points.
    Other,
}

/// A host of AWS for S3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AwsHost {
    kind: Kind,
    /// Without the bucket.
    pub host: String,
    /// The bucket before it.
    pub bucket: Option<String>,
    /// The region, where the name says it.
    pub region: Option<String>,
    domain: &'static str,
}

impl AwsHost {
    /// `[bucket.]s3[.dualstack].region.amazonaws.com`, `s3-region`, `bucket.s3express-zone.region`,
    /// `[name.]bucket.vpce-id.s3.region.vpce`; `None` for all others.
    pub fn parse(host: &str) -> Option<Self> {
        let domain = ["amazonaws.com.cn", "amazonaws.com"]
            .into_iter()
            .find(|domain| host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')))?;
        let labels: Vec<&str> = host[..host.len() - domain.len() - 1].split('.').collect();
        let is_service = |label: &&str| {
            *label == "s3" || label.starts_with("s3-") || label.starts_with("s3express-")
        };
        // From the right, since a bucket may be called s3.
        let at = labels.iter().rposition(is_service)?;
        let (before, own) = labels.split_at(at);
        if own.len() == 3 && own[0] == "s3" && own[2] == "vpce" {
            return Self::private_link(before, own, domain);
        }
        let service = own[0];
        let rest: Vec<&str> =
            own[1..].iter().copied().filter(|label| *label != "dualstack").collect();
        let inside = service.strip_prefix("s3-").filter(|rest| *rest != "fips");
        let kind = match inside {
            _ if service.starts_with("s3express-") => Kind::Express,
            Some("accelerate") => Kind::Accelerate,
            _ if service.starts_with("s3-fips") => Kind::Fips,
            _ if rest.len() > 1 => Kind::Other,
            Some(inside) if !rest.is_empty() || !(is_region(inside) || inside == "external-1") => {
                Kind::Other
            }
            _ if own.len() > rest.len() + 1 => Kind::DualStack,
            _ => Kind::Regional,
        };
        let inside = inside.map(|rest| rest.strip_prefix("fips-").unwrap_or(rest));
        let region = match inside {
            // One name for all regions: the bucket's own is not in it.
            Some("accelerate") => None,
            // An old name of us-east-1.
            Some("external-1") => Some("us-east-1"),
            inside => rest.first().copied().or(inside).or(Some("us-east-1")),
        };
        let bucket = (at > 0).then(|| before.join("."));
        let host = format!("{}.{domain}", own.join("."));
        Some(AwsHost { kind, host, bucket, region: region.map(str::to_owned), domain })
    }

    /// The label `bucket` before the endpoint's id is AWS's own: it says that buckets are addressed
    /// there.
    fn private_link(before: &[&str], own: &[&str], domain: &'static str) -> Option<Self> {
        let at = before.iter().rposition(|label| label.starts_with("vpce-"))?;
        let (names, id) = before.split_at(at);
        let bucket = match names {
            [] | ["bucket"] => None,
            [bucket @ .., "bucket"] => Some(bucket.join(".")),
            _ => return None,
        };
        let host = format!("bucket.{}.{}.{domain}", id.join("."), own.join("."));
        Some(AwsHost {
            kind: Kind::PrivateLink,
            host,
            bucket,
            region: Some(own[1].to_owned()),
            domain,
        })
    }

    /// Whether directory buckets are there.
    pub fn is_express(&self) -> bool {
        self.kind == Kind::Express
    }

    /// Whether it is an endpoint in a private network.
    pub fn is_private_link(&self) -> bool {
        self.kind == Kind::PrivateLink
    }

    /// The host that serves another region as this one serves its own; `None` where there is none,
    /// and for what is no region of the same partition of AWS.
    pub fn in_region(&self, region: &str) -> Option<String> {
        let is_known = is_region(region)
            && partition(region) == partition(self.region.as_deref().unwrap_or(""));
        match self.kind {
            _ if !is_known => None,
            Kind::Regional => Some(format!("s3.{region}.{}", self.domain)),
            Kind::DualStack => Some(format!("s3.dualstack.{region}.{}", self.domain)),
            Kind::Accelerate => Some(self.host.clone()),
            Kind::Fips | Kind::PrivateLink | Kind::Express | Kind::Other => None,
        }
    }
}

/// Whether it has the shape of a region's name at AWS: `us-east-1`, `us-gov-west-1`,
/// `eusc-de-east-1`.
fn is_region(text: &str) -> bool {
    let words: Vec<&str> = text.split('-').collect();
    let [names @ .., number] = words.as_slice() else { return false };
    let is_name = |word: &&str| {
        (2..=10).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase())
    };
    let is_number =
        (1..=2).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    (2..=4).contains(&names.len()) && names.iter().all(is_name) && is_number
}

/// The part of AWS that a region belongs to: credentials and buckets are of one alone.
fn partition(region: &str) -> &str {
    match region.split_once('-') {
        Some(("cn", _)) => "cn",
        Some(("us", rest)) if rest.starts_with("gov-") => "us-gov",
        Some(("us" | "eu", rest)) if rest.starts_with("iso") => "iso",
        Some(("eusc", _)) => "eusc",
        _ => "aws",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_have_a_shape() {
        for region in [
            "us-east-1",
            "ap-southeast-2",
            "us-gov-west-1",
            "us-isob-east-1",
            "eusc-de-east-1",
            "mx-central-1",
        ] {
            assert!(is_region(region), "{region}");
        }
        for other in [
            "",
            "eu",
            "eu-1",
            "us-east",
            "us-east-",
            "us-east-1a",
            "us-east-123",
            "US-EAST-1",
            "evil.com",
            "a-b-1",
            "-east-1",
        ] {
            assert!(!is_region(other), "{other}");
        }
    }

    #[test]
    fn a_name_moves_only_to_another_of_its_kind() {
        let to = |host: &str, region: &str| AwsHost::parse(host).unwrap().in_region(region);
        let eu = "eu-west-3";
        assert_eq!(
            to("s3.us-east-1.amazonaws.com", eu).as_deref(),
            Some("s3.eu-west-3.amazonaws.com")
        );
        assert_eq!(to("s3.amazonaws.com", eu).as_deref(), Some("s3.eu-west-3.amazonaws.com"));
        assert_eq!(
            to("s3-us-west-2.amazonaws.com", eu).as_deref(),
            Some("s3.eu-west-3.amazonaws.com")
        );
        assert_eq!(
            to("s3.dualstack.us-east-1.amazonaws.com", eu).as_deref(),
            Some("s3.dualstack.eu-west-3.amazonaws.com")
        );
        assert_eq!(
            to("s3-accelerate.amazonaws.com", eu).as_deref(),
            Some("s3-accelerate.amazonaws.com")
        );
        assert_eq!(
            to("s3.cn-north-1.amazonaws.com.cn", "cn-northwest-1").as_deref(),
            Some("s3.cn-northwest-1.amazonaws.com.cn")
        );
        for fixed in [
            "s3-fips.us-gov-west-1.amazonaws.com",
            "s3-fips-us-gov-west-1.amazonaws.com",
            "s3-fips.dualstack.us-east-1.amazonaws.com",
            "bucket.vpce-1a2b-5e6f.s3.us-east-1.vpce.amazonaws.com",
            "s3express-use1-az4.us-east-1.amazonaws.com",
            "s3-accesspoint.us-east-1.amazonaws.com",
        ] {
            assert_eq!((to(fixed, eu), to(fixed, "us-gov-east-1")), (None, None), "{fixed}");
        }
        for odd in ["us-nowhere", "evil.com", "", "cn-north-1", "us-gov-west-1", "us-iso-east-1"] {
            assert_eq!(to("s3.us-east-1.amazonaws.com", odd), None, "{odd}");
        }
    }
}
