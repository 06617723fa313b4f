//! Requests for an object of a member, in the form of the merged lists: with the cluster annotation and a composite
//! resourceVersion.

use std::sync::Arc;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_members::Member;
use http::{HeaderValue, Request, Response, StatusCode, header};
use serde_json::json;

use super::item::Document;
use crate::cluster::read_response_body;
use crate::composite::CompositeVersion;
use crate::fleetwide::write::replace_composite_versions;
use crate::merged::Heading;
use crate::native::{NativePath, Verb};
use crate::object::annotate_live;
use crate::table::{Content, Shape, TableForm};
use crate::{Body, Caller, Error, Proxy, full};

impl Proxy {
    pub(super) async fn forward_to_owner(
        &self,
        owner: &Arc<Member>,
        caller: &Caller,
        native: &NativePath,
        verb: Verb,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        if verb == Verb::Get && native.subresource.is_empty() {
            let query = Query::parse(request.uri().query());
            return self.get_live(owner.name(), caller, path, &query, request).await;
        }
        // The body of a proxied request is not an object.
        let request = match native.subresource == "proxy" {
            true => request,
            false => replace_composite_versions(verb, request, owner.name().as_str()).await?,
        };
        self.forward_to_member(owner, caller, path, request, None).await
    }

    /// Reads an object from its member.
    pub(crate) async fn get_live(
        &self,
        cluster: &ClusterName,
        caller: &Caller,
        path: &str,
        query: &Query,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let shape = Shape::from_accept_header(request.headers(), query, Content::Object)?;
        let accept = match shape {
            Shape::Objects(_) => "application/json",
            Shape::Table(_) => "application/json;as=Table;v=v1;g=meta.k8s.io",
        };
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(accept));
        request.headers_mut().remove(header::ACCEPT_ENCODING);
        let response = self.forward_to_cluster(cluster.as_str(), caller, path, request).await?;
        if response.status() != StatusCode::OK {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let body = read_response_body(body).await?;
        let annotated = match shape {
            Shape::Objects(form) => annotate_live(&body, cluster.as_str(), form)?,
            Shape::Table(form) => table(&body, cluster, form)?,
        };
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(annotated.len()));
        Ok(Response::from_parts(parts, full(annotated)))
    }
}

/// A member's table with the column of the cluster.
fn table(body: &[u8], cluster: &ClusterName, form: TableForm) -> Result<Vec<u8>, Error> {
    let document: Document = serde_json::from_slice(body)?;
    let version = composite_version(cluster, &document.metadata.resource_version);
    let mut heading = Heading::default();
    let mut table = Vec::from(b"{\"rows\":[");
    for (nth, item) in document.into_items(cluster, &mut Arc::default()).into_iter().enumerate() {
        if nth > 0 {
            table.push(b',');
        }
        let item_version = item.own_version().map(|item_version| composite_version(cluster, &item_version));
        table.extend_from_slice(&item.encode(Shape::Table(form), &mut heading, item_version.as_deref())?);
    }
    table.extend_from_slice(b"],");
    let trailing_fields = heading.trailing_fields(Shape::Table(form), json!({"resourceVersion": version}));
    table.extend_from_slice(&serde_json::to_vec(&trailing_fields)?[1..]);
    Ok(table)
}

/// The composite form of a member's resourceVersion.
pub fn composite_version(cluster: &ClusterName, version: &str) -> String {
    CompositeVersion::for_cluster(cluster.as_str(), version).encode()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Include;
    use serde_json::Value;

    #[rstest::rstest]
    #[case(Include::None, json!({"cells": ["a", "m1", 1], "object": null}))]
    #[case(Include::Metadata, json!({"cells": ["a", "m1", 1], "object": {
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {
            "name": "a", "resourceVersion": "eyJtMSI6IjcifQ", "annotations": {"resource.karmada.io/cached-from-cluster": "m1"},
    }}}))]
    fn tables_of_a_member_have_the_column_of_the_cluster(#[case] include: Include, #[case] row: Value) {
        let object = json!({"metadata": {"name": "a", "resourceVersion": "7"}});
        let member_table = json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "7"},
            "columnDefinitions": [{"name": "Name"}, {"name": "Data"}], "rows": [{"cells": ["a", 1], "object": object}],
        });
        let cluster = ClusterName::parse("m1").unwrap();
        let table = table(member_table.to_string().as_bytes(), &cluster, include.into()).unwrap();
        let table: Value = serde_json::from_slice(&table).unwrap();
        assert_eq!((&table["kind"], &table["rows"]), (&json!("Table"), &json!([row])));
        assert_eq!(table["columnDefinitions"][1]["name"], "Cluster");
        assert_eq!(table["metadata"], json!({"resourceVersion": "eyJtMSI6IjcifQ"}));
    }
}
