use crate::endpoint::Endpoint;
use crate::http::ResponseHead;
use crate::xml::ErrorDocument;

/// The region of the bucket that a refusal names: in a header, in its document, or as the endpoint
/// to which it leads. Another endpoint counts only as far as it names a region of the same service.
pub fn named_region(
    head: &ResponseHead,
    document: &ErrorDocument,
    asked: &Endpoint,
) -> Option<String> {
    let header = head.header("x-amz-bucket-region").map(str::to_owned);
    header.or_else(|| document.region.clone()).or_else(|| {
        let location = document.endpoint.as_deref().or(head.header("location"))?;
        asked.region_at(location)
    })
}
