//! Representation of responses about stored kinds. The control plane returns JSON, in which responses are translated;
//! this server encodes them as the client accepts them.

use crowsnest_apimachinery::content_negotiation::{self, Encoding, Offer, Shape};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::{Body, StatusResponse, json};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use super::forward::JSON_MEDIA_TYPE;

const YAML: HeaderValue = HeaderValue::from_static("application/yaml");

/// The representation that a client accepts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Representation(content_negotiation::Representation);

impl Representation {
    /// Chooses a representation; 406 if there is none. Watches are served as JSON only.
    pub(super) fn choose(headers: &HeaderMap, is_watch: bool) -> Result<Self, ApiError> {
        let clauses = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let clauses: Vec<&str> = clauses.collect();
        let representation = content_negotiation::choose_representation(Some(&clauses.join(",")), Offer::Custom)?;
        match is_watch && representation.encoding == Encoding::Yaml {
            true => Err(content_negotiation::stream_not_acceptable()),
            false => Ok(Self(representation)),
        }
    }

    pub(super) fn is_table(self) -> bool {
        self.0.shape == Shape::Table
    }

    /// True for the version `meta.k8s.io/v1beta1` of a table or metadata.
    pub(super) fn is_beta(self) -> bool {
        self.0.is_beta
    }

    /// The `Accept` header for the control plane: the same transformation, as JSON.
    pub(super) fn accept_json(self) -> HeaderValue {
        let target = match self.0.shape {
            Shape::Table => "Table",
            Shape::PartialMetadata => "PartialObjectMetadata",
            Shape::PartialMetadataList => "PartialObjectMetadataList",
            Shape::Object | Shape::AggregatedDiscovery { .. } => return JSON_MEDIA_TYPE,
        };
        let version = if self.0.is_beta { "v1beta1" } else { "v1" };
        let accept = format!("application/json;as={target};g=meta.k8s.io;v={version}");
        HeaderValue::try_from(accept).unwrap_or(JSON_MEDIA_TYPE)
    }

    /// A response with a translated value.
    pub(super) fn encode(self, code: StatusCode, value: &Value) -> Result<Response<Body>, ApiError> {
        if self.0.encoding != Encoding::Yaml {
            return Ok(json(code, value));
        }
        let mut response = Response::new(yaml(value)?);
        *response.status_mut() = code;
        response.headers_mut().insert(header::CONTENT_TYPE, YAML);
        Ok(response)
    }

    /// The response to a refused request; JSON is the default of all handlers.
    pub(super) fn refuse(self, error: ApiError) -> Result<Response<Body>, ApiError> {
        if self.0.encoding != Encoding::Yaml {
            return Err(error);
        }
        let body = yaml(&error.to_status())?;
        let (mut parts, _) = error.into_response().into_parts();
        parts.headers.insert(header::CONTENT_TYPE, YAML);
        Ok(Response::from_parts(parts, body))
    }
}

fn yaml(value: &Value) -> Result<Body, ApiError> {
    Ok(Body::from(serde_saphyr::to_string(value).map_err(ApiError::internal)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_process::reply::ResponseStatus;
    use rstest::rstest;

    fn choose(accept: &str, is_watch: bool) -> Result<(HeaderValue, Encoding), u16> {
        let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
        let chosen = Representation::choose(&headers, is_watch).map_err(|error| error.code)?;
        Ok((chosen.accept_json(), chosen.0.encoding))
    }

    #[rstest]
    #[case::kubectl(
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        Ok(("application/json;as=Table;g=meta.k8s.io;v=v1", Encoding::Json))
    )]
    #[case::the_garbage_collector(
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        Ok(("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", Encoding::Json))
    )]
    #[case::metadata_of_a_list(
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1",
        Ok(("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1", Encoding::Json))
    )]
    #[case::anything("*/*", Ok(("application/json", Encoding::Json)))]
    #[case::yaml("application/yaml", Ok(("application/json", Encoding::Yaml)))]
    #[case::yaml_first("application/yaml,application/json;q=0.5", Ok(("application/json", Encoding::Yaml)))]
    #[case::protobuf_only("application/vnd.kubernetes.protobuf", Err(406))]
    #[case::text("text/plain", Err(406))]
    fn the_control_plane_returns_json(#[case] accept: &str, #[case] expected: Result<(&'static str, Encoding), u16>) {
        let expected = expected.map(|(accept, encoding)| (HeaderValue::from_static(accept), encoding));
        assert_eq!(choose(accept, false), expected);
    }

    #[test]
    fn refusals_have_the_accepted_encoding() {
        let headers = HeaderMap::from_iter([(header::ACCEPT, YAML)]);
        let representation = Representation::choose(&headers, false).unwrap();
        let error = ApiError::forbidden("cluster.karmada.io", "clusters", "m1", "no");
        let refused = representation.refuse(error.clone()).unwrap();
        assert_eq!((refused.status().as_u16(), &refused.headers()[header::CONTENT_TYPE]), (403, &YAML));
        assert_eq!(refused.extensions().get::<ResponseStatus>().unwrap().0, error.to_status());
        let json = Representation::choose(&HeaderMap::new(), false).unwrap();
        assert_eq!(json.refuse(error).unwrap_err().code, 403);
    }

    #[rstest]
    #[case("application/yaml", true)]
    #[case("application/json", false)]
    fn watches_are_not_yaml(#[case] accept: &str, #[case] refused: bool) {
        assert_eq!(choose(accept, true).is_err(), refused);
    }
}
