//! Content negotiation: chooses the representation of a response from `Accept`, and reads that of a request body from `Content-Type`.

use crate::status::{ApiError, ApiResult, Details, Reason};

/// Transformation of the objects in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    #[default]
    Object,
    /// `as=Table`.
    Table,
    /// `as=PartialObjectMetadata`: single objects only.
    PartialMetadata,
    /// `as=PartialObjectMetadataList`: lists only.
    PartialMetadataList,
    /// `as=APIGroupDiscoveryList` in version `v2` or `v2beta1`; discovery only.
    AggregatedDiscovery { is_beta: bool },
}

/// Encodings of bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    #[default]
    Json,
    Yaml,
    /// Request bodies of Go clients only; responses never use it.
    Protobuf,
}

/// The chosen representation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Representation {
    pub encoding: Encoding,
    pub shape: Shape,
    /// True for tables and metadata in `meta.k8s.io/v1beta1`, for clients before Kubernetes 1.15.
    pub is_beta: bool,
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

fn parse_ranges(accept: &str) -> Vec<MediaRange<'_>> {
    let mut ranges: Vec<MediaRange<'_>> = accept
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
    // Stable sort: ranges of equal quality keep the client's order.
    ranges.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    ranges
}

/// Kind of the response of a path. It determines the available representations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// An object of a kind with a table.
    Object,
    /// An object of a kind without a table: a review, a binding, a token.
    ObjectWithoutTable,
    /// A list or a watch.
    Collection,
    /// Custom resources, which share one route.
    Custom,
    /// The groups of `/apis`.
    Groups,
    /// The versions of `/api`.
    Versions,
    /// A group or version of discovery; never aggregated.
    Document,
    /// The resources of a version; never aggregated.
    Resources,
    /// The version of the server. JSON only.
    Version,
    /// A list merged from those of several clusters, or one of its objects. JSON only.
    Merged,
    /// A watch merged from those of several clusters. JSON only.
    MergedStream,
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Media types in error messages for clients that want protobuf.
const MEDIA_TYPES_WITHOUT_PROTOBUF: &str = "application/json, application/yaml";
/// Media types in other error messages. They include protobuf as in Kubernetes, although responses never use it.
const MEDIA_TYPES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const STREAM_MEDIA_TYPES: &str = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

impl Offer {
    /// Media types that a route declares; they do not match `application/*`. `None` for paths without a declared list.
    fn produced_media_types(self) -> Option<String> {
        match self {
            Self::Object | Self::ObjectWithoutTable | Self::Versions | Self::Resources => Some(MEDIA_TYPES.to_owned()),
            Self::Collection => Some(format!("{MEDIA_TYPES}, {STREAM_MEDIA_TYPES}")),
            Self::Version => Some("application/json".to_owned()),
            Self::Custom | Self::Groups | Self::Document | Self::Merged | Self::MergedStream => None,
        }
    }

    fn is_aggregated(self) -> bool {
        matches!(self, Self::Groups | Self::Versions)
    }

    fn is_discovery(self) -> bool {
        matches!(self, Self::Groups | Self::Versions | Self::Document | Self::Resources | Self::Version)
    }

    fn is_merged(self) -> bool {
        matches!(self, Self::Merged | Self::MergedStream)
    }

    fn has_table(self) -> bool {
        !self.is_discovery() && self != Self::ObjectWithoutTable
    }

    /// Media types in the message of a 406 for a supported media type with parameters (`as`, `g`, `v`) that are not
    /// offered.
    fn accepted_media_types(self) -> &'static str {
        match self {
            Self::Merged => "application/json",
            Self::MergedStream => "application/json;stream=watch",
            _ => MEDIA_TYPES,
        }
    }
}

/// Chooses the representation of a response from the `Accept` header. Fails with 406 if none of the media ranges is
/// available; a missing header accepts JSON.
pub fn choose_representation(header: Option<&str>, offer: Offer) -> ApiResult<Representation> {
    let header = header.unwrap_or_default();
    if header.is_empty() {
        return Ok(Representation::default());
    }
    let ranges = parse_ranges(header);
    if let Some(produced) = offer.produced_media_types() {
        let is_produced = |kind: &str| kind == "*/*" || produced.split(", ").any(|media| media == kind);
        if !ranges.iter().any(|range| is_produced(range.kind)) {
            return Err(not_acceptable(&produced));
        }
    }
    if offer == Offer::Version {
        return Ok(Representation::default());
    }
    let wants_protobuf = ranges.iter().any(|range| range.kind == PROTOBUF);
    let mut is_refused_by_route = offer.produced_media_types().is_some();
    for range in ranges {
        let encoding = match range.kind {
            "application/json" | "application/*" | "*/*" => Encoding::Json,
            "application/yaml" if !offer.is_merged() => Encoding::Yaml,
            _ => continue,
        };
        is_refused_by_route = false;
        if let Some(shape) = shape(&range, offer) {
            let is_beta = range.get("g") == "meta.k8s.io" && range.get("v") == "v1beta1" && shape != Shape::Object;
            return Ok(Representation { encoding, shape, is_beta });
        }
    }
    let listed =
        |media: &'static str| if wants_protobuf && media == MEDIA_TYPES { MEDIA_TYPES_WITHOUT_PROTOBUF } else { media };
    // If the server supports the encoding of none of the media ranges, the error is that of the route.
    Err(if is_refused_by_route {
        not_acceptable(listed(MEDIA_TYPES))
    } else {
        transformation_not_acceptable(listed(offer.accepted_media_types()))
    })
}

/// 406 for a watch of a kind without watches.
pub fn stream_not_acceptable() -> ApiError {
    transformation_not_acceptable(STREAM_MEDIA_TYPES)
}

/// 406 for `as=PartialObjectMetadata` of a list of this Go type.
pub fn list_not_acceptable(go_type: &str) -> ApiError {
    shape_not_acceptable(&format!("PartialObjectMetadata, but the requested object is a list (*{go_type})"))
}

/// 406 for `as=PartialObjectMetadataList` of an object of this Go type.
pub fn object_not_acceptable(go_type: &str) -> ApiError {
    shape_not_acceptable(&format!("PartialObjectMetadataList, but the requested object is not a list (*{go_type})"))
}

fn shape_not_acceptable(reason: &str) -> ApiError {
    ApiError::new(Reason::NotAcceptable, format!("you requested {reason}"))
}

/// 406 for a supported media type with a transformation that is not available.
fn transformation_not_acceptable(media: &str) -> ApiError {
    ApiError::new(Reason::NotAcceptable, format!("only the following media types are accepted: {media}"))
}

fn shape(range: &MediaRange<'_>, offer: Offer) -> Option<Shape> {
    let (target, group, version) = (range.get("as"), range.get("g"), range.get("v"));
    let (has_metadata, aggregated) =
        (!offer.is_discovery() && matches!(version, "v1" | "v1beta1"), offer.is_aggregated());
    match (target, group, version) {
        ("", "", "") => Some(Shape::Object),
        ("Table", "meta.k8s.io", _) if has_metadata && offer.has_table() => Some(Shape::Table),
        ("PartialObjectMetadata", "meta.k8s.io", _) if has_metadata => Some(Shape::PartialMetadata),
        ("PartialObjectMetadataList", "meta.k8s.io", _) if has_metadata => Some(Shape::PartialMetadataList),
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") if aggregated => {
            Some(Shape::AggregatedDiscovery { is_beta: false })
        }
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") if aggregated => {
            Some(Shape::AggregatedDiscovery { is_beta: true })
        }
        _ => None,
    }
}

/// 406 for unknown media types.
fn not_acceptable(media: &str) -> ApiError {
    let text = format!("406: Not Acceptable\n\nAvailable representations: {media}");
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
        _ => Err(unsupported_media_type(&[
            "application/json",
            "application/yaml",
            "application/vnd.kubernetes.protobuf",
        ])),
    }
}

/// 415 for a body of a media type that is not accepted.
pub fn unsupported_media_type(accepted: &[&str]) -> ApiError {
    let text = "the body of the request was in an unknown format - accepted media types include";
    ApiError::new(Reason::UnsupportedMediaType, format!("{text}: {}", accepted.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_available_media_type_is_chosen() {
        let object = Representation::default();
        let table = Representation { shape: Shape::Table, ..object };
        let cases = [
            ("", Ok(object)),
            ("*/*", Ok(object)),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Ok(table)),
            ("application/vnd.kubernetes.protobuf,application/json", Ok(object)),
            ("text/html,application/xml;q=0.9,*/*;q=0.8", Ok(object)),
            ("application/json;as=Table;v=v9;g=meta.k8s.io", Err(406)),
            ("application/vnd.kubernetes.protobuf", Err(406)),
            ("application/json;v=v9", Err(406)),
            ("application/json;stream=watch", Ok(object)),
            ("application/*", Err(406)),
            ("application/*,application/json", Ok(object)),
        ];
        for (header, expected) in cases {
            assert_eq!(choose_representation(Some(header), Offer::Object).map_err(|e| e.code), expected, "{header}");
        }
        const ROUTE: &str = "406: Not Acceptable\n\nAvailable representations: ";
        const TRANSFORMATION: &str = "only the following media types are accepted: ";
        let refused = [
            (Offer::Object, "text/plain", format!("{ROUTE}{MEDIA_TYPES}")),
            (
                Offer::Object,
                "application/vnd.kubernetes.protobuf",
                format!("{ROUTE}application/json, application/yaml"),
            ),
            (Offer::Collection, "application/*", format!("{ROUTE}{MEDIA_TYPES}, {STREAM_MEDIA_TYPES}")),
            (Offer::Collection, "application/json;g=x", format!("{TRANSFORMATION}{MEDIA_TYPES}")),
            (
                Offer::ObjectWithoutTable,
                "application/json;as=Table;v=v1;g=meta.k8s.io",
                format!("{TRANSFORMATION}{MEDIA_TYPES}"),
            ),
            (Offer::ObjectWithoutTable, "text/plain", format!("{ROUTE}{MEDIA_TYPES}")),
            (Offer::Groups, "text/plain", format!("{TRANSFORMATION}{MEDIA_TYPES}")),
            (Offer::Versions, "text/plain", format!("{ROUTE}{MEDIA_TYPES}")),
            (Offer::Document, "application/json;as=Table;v=v1;g=meta.k8s.io", format!("{TRANSFORMATION}{MEDIA_TYPES}")),
            (Offer::Version, "application/yaml", format!("{ROUTE}application/json")),
            (Offer::Merged, "application/yaml", format!("{TRANSFORMATION}application/json")),
            (
                Offer::Merged,
                "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
                format!("{TRANSFORMATION}application/json"),
            ),
            (Offer::MergedStream, "text/plain", format!("{TRANSFORMATION}application/json;stream=watch")),
        ];
        for (offer, header, text) in refused {
            assert_eq!(
                choose_representation(Some(header), offer).map_err(|e| e.message),
                Err(text),
                "{offer:?} {header}"
            );
        }
        let accepted =
            [(Offer::Version, "application/json;v=v9"), (Offer::Groups, "application/*"), (Offer::Document, "*/*")];
        let metadata = Representation { shape: Shape::PartialMetadata, ..object };
        for (header, expected) in [
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", object),
            ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", metadata),
        ] {
            assert_eq!(choose_representation(Some(header), Offer::ObjectWithoutTable), Ok(expected), "{header}");
        }
        let old = Representation { is_beta: true, ..table };
        for offer in [Offer::Object, Offer::Custom, Offer::Merged, Offer::MergedStream] {
            let header = "application/json;as=Table;g=meta.k8s.io;v=v1beta1,application/json";
            assert_eq!(choose_representation(Some(header), offer), Ok(old), "{offer:?}");
        }
        for (offer, header) in accepted {
            assert_eq!(choose_representation(Some(header), offer), Ok(object), "{offer:?} {header}");
        }
    }
}
