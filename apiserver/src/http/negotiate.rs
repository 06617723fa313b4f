//! Which representation a client gets, from its Accept header; which one it sent, from Content-Type. Pure.

use crate::status::{ApiError, ApiResult, Details, Reason};

/// What the answer's objects are turned into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    #[default]
    Object,
    /// `as=Table`.
    Table,
    /// `as=PartialObjectMetadata`: only single objects have it.
    PartialMetadata,
    /// `as=PartialObjectMetadataList`: only lists have it.
    PartialMetadataList,
    /// `as=APIGroupDiscoveryList` in version 2 or 2beta1; only discovery has it.
    Aggregated { beta: bool },
}

/// Encodings of bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    #[default]
    Json,
    Yaml,
    /// Request bodies of Go clients; never an answer.
    Protobuf,
}

/// The chosen representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accepted {
    pub encoding: Encoding,
    pub shape: Shape,
    /// Tables and metadata are wanted in `meta.k8s.io/v1beta1`, as clients before 1.15 know them.
    pub beta: bool,
}

struct MediaRange<'a> {
    kind: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl MediaRange<'_> {
    fn get(&self, name: &str) -> &str {
        self.parameters.iter().find(|(k, _)| *k == name).map_or("", |(_, v)| *v)
    }
}

fn ranges(accept: &str) -> Vec<MediaRange<'_>> {
    let mut all: Vec<MediaRange<'_>> = accept
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| {
            let mut pieces = part.split(';').map(str::trim);
            let kind = pieces.next().unwrap_or_default();
            let parameters: Vec<(&str, &str)> = pieces.filter_map(|p| p.split_once('=')).collect();
            let quality = parameters.iter().find(|(k, _)| *k == "q").and_then(|(_, q)| q.parse().ok()).unwrap_or(1.0);
            MediaRange { kind, parameters, quality }
        })
        .collect();
    // Stable: equals keep the client's order.
    all.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    all
}

/// Chooses a representation. `aggregated` tells whether the path offers discovery lists.
pub fn accept(header: Option<&str>, aggregated: bool) -> ApiResult<Accepted> {
    let header = header.unwrap_or_default();
    if header.is_empty() {
        return Ok(Accepted::default());
    }
    let mut known_media = false;
    for range in ranges(header) {
        let encoding = match range.kind {
            "application/json" | "*/*" => Encoding::Json,
            "application/yaml" => Encoding::Yaml,
            _ => continue,
        };
        known_media = true;
        if let Some(shape) = shape(&range, aggregated) {
            let beta = range.get("g") == "meta.k8s.io" && range.get("v") == "v1beta1" && shape != Shape::Object;
            return Ok(Accepted { encoding, shape, beta });
        }
    }
    if known_media {
        return Err(transforms());
    }
    Err(not_acceptable())
}

/// The encoding of a document that is turned into nothing else.
pub fn accept_plain(header: Option<&str>) -> ApiResult<Encoding> {
    match accept(header, true) {
        Ok(Accepted { encoding, shape: Shape::Object, .. }) => Ok(encoding),
        Ok(_) => Err(transforms()),
        Err(error) => Err(error),
    }
}

/// 406 for known media types in a form that is not offered.
fn transforms() -> ApiError {
    let text = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    ApiError::new(Reason::NotAcceptable, text)
}

fn shape(range: &MediaRange<'_>, aggregated: bool) -> Option<Shape> {
    let (target, group, version) = (range.get("as"), range.get("g"), range.get("v"));
    match (target, group, version) {
        ("", _, _) => Some(Shape::Object),
        ("Table", "meta.k8s.io", "v1" | "v1beta1") if !aggregated => Some(Shape::Table),
        ("PartialObjectMetadata", "meta.k8s.io", "v1" | "v1beta1") if !aggregated => Some(Shape::PartialMetadata),
        ("PartialObjectMetadataList", "meta.k8s.io", "v1" | "v1beta1") if !aggregated => {
            Some(Shape::PartialMetadataList)
        }
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") if aggregated => Some(Shape::Aggregated { beta: false }),
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") if aggregated => {
            Some(Shape::Aggregated { beta: true })
        }
        _ => None,
    }
}

pub fn not_acceptable() -> ApiError {
    let text = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    ApiError::new(Reason::NotAcceptable, text).with_details(Details::default())
}

/// The media type without parameters, lower case.
pub fn media_type(header: Option<&str>) -> String {
    header.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_lowercase()
}

/// The encoding of a request body; 415 for anything unknown.
pub fn body_encoding(header: Option<&str>) -> ApiResult<Encoding> {
    match media_type(header).as_str() {
        "" | "application/json" | "*/*" => Ok(Encoding::Json),
        "application/yaml" => Ok(Encoding::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Encoding::Protobuf),
        _ => Err(ApiError::new(
            Reason::UnsupportedMediaType,
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_offer_the_server_has_wins() {
        let object = Accepted::default();
        let table = Accepted { shape: Shape::Table, ..object };
        let cases = [
            ("", Ok(object)),
            ("*/*", Ok(object)),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Ok(table)),
            ("application/vnd.kubernetes.protobuf,application/json", Ok(object)),
            ("text/html,application/xml;q=0.9,*/*;q=0.8", Ok(object)),
            ("application/json;as=Table;v=v9;g=meta.k8s.io", Err(406)),
            ("application/vnd.kubernetes.protobuf", Err(406)),
        ];
        for (header, expected) in cases {
            assert_eq!(accept(Some(header), false).map_err(|e| e.code), expected, "{header}");
        }
    }
}
