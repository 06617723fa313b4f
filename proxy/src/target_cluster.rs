//! Target cluster named by the request: `?cluster=NAME` or the header `X-Crowsnest-Cluster`. Both are removed
//! before the request is forwarded.

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use http::{HeaderName, Request, Uri};

use crate::{Body, Error};

const HEADER: HeaderName = HeaderName::from_static("x-crowsnest-cluster");
const PARAMETER: &str = "cluster";

/// Removes the target cluster from a request and returns it.
pub fn take_target(request: &mut Request<Body>) -> Result<Option<ClusterName>, Error> {
    let header = request.headers_mut().remove(HEADER);
    let header = header.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let requested = take_parameter(request)?.or(header);
    let parse = |name: String| ClusterName::parse(&name).map_err(|_| Error::ClusterNotFound(name));
    requested.map(parse).transpose()
}

fn take_parameter(request: &mut Request<Body>) -> Result<Option<String>, Error> {
    let Some(query) = request.uri().query() else { return Ok(None) };
    let Some(name) = Query::parse(Some(query)).first(PARAMETER).map(str::to_owned) else { return Ok(None) };
    let rest = Query::remove_parameters(query, |name| name == PARAMETER);
    let target = format!("{}?{rest}", request.uri().path());
    *request.uri_mut() = target.parse::<Uri>().map_err(|error| Error::BadRequest(error.to_string()))?;
    Ok(Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::full;

    #[rstest::rstest]
    #[case("/api?cluster=m1&limit=1", None, Some("m1"), "/api?limit=1")]
    #[case("/api?limit=1&cluster=m%31", None, Some("m1"), "/api?limit=1")]
    #[case("/api?limit=1", Some("m2"), Some("m2"), "/api?limit=1")]
    #[case("/api?cluster=m1", Some("m2"), Some("m1"), "/api?")]
    #[case("/api?clusters=m1", None, None, "/api?clusters=m1")]
    #[case("/api", None, None, "/api")]
    fn the_target_cluster_is_removed_from_the_request(
        #[case] uri: &str,
        #[case] header: Option<&str>,
        #[case] expected: Option<&str>,
        #[case] remaining_uri: &str,
    ) {
        let mut request = Request::builder().uri(uri);
        if let Some(header) = header {
            request = request.header("X-Crowsnest-Cluster", header);
        }
        let mut request = request.body(full("")).unwrap();
        let target = take_target(&mut request).unwrap();
        assert_eq!(target.as_ref().map(ClusterName::as_str), expected);
        assert_eq!((request.uri().to_string().as_str(), request.headers().len()), (remaining_uri, 0));
    }

    #[test]
    fn an_invalid_name_is_not_found() {
        let mut request = Request::builder().uri("/api?cluster=a/b").body(full("")).unwrap();
        assert!(matches!(take_target(&mut request), Err(Error::ClusterNotFound(name)) if name == "a/b"));
    }
}
