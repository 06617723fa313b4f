//! Request and response of interpreter webhooks (`config.karmada.io/v1alpha1` ResourceInterpreterContext), and
//! validation of responses.

use crowsnest_api::config::{
    GROUP, GroupVersionKind, InterpreterOperation as Operation, ResourceInterpreterContext, ResourceInterpreterRequest,
    ResourceInterpreterResponse,
};
use crowsnest_api::work::{AggregatedStatusItem, Component, ReplicaRequirements};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::Value;

use super::WebhookError;
use crate::default::dependencies;
use crowsnest_plan::dependencies::{Dependency, DependencyList};

/// The supported version of ResourceInterpreterContext.
pub const VERSION: &str = "v1alpha1";
const KIND: &str = "ResourceInterpreterContext";
const JSON_PATCH: &str = "JSONPatch";

/// Request to a webhook.
#[derive(Debug, Clone)]
pub(super) struct OperationRequest<'a> {
    pub operation: Operation,
    pub object: &'a Value,
    pub observed: Option<&'a Value>,
    pub replicas: i32,
    pub statuses: &'a [AggregatedStatusItem],
}

impl<'a> OperationRequest<'a> {
    pub fn new(object: &'a Value, operation: Operation) -> Self {
        OperationRequest { operation, object, observed: None, replicas: 0, statuses: &[] }
    }

    /// Encodes the request with a uid, which the response must repeat.
    pub fn to_context(&self, uid: &str) -> ResourceInterpreterContext {
        let (group, version) = group_version(self.object);
        let kind = unstructured::kind(self.object).to_owned();
        ResourceInterpreterContext {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            request: Some(ResourceInterpreterRequest {
                uid: uid.to_owned(),
                kind: GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind },
                name: unstructured::name(self.object).to_owned(),
                namespace: unstructured::namespace(self.object).to_owned(),
                operation: self.operation.clone(),
                object: Some(RawExtension(self.object.clone())),
                observed_object: self.observed.cloned().map(RawExtension),
                desired_replicas: Some(self.replicas),
                aggregated_status: self.statuses.to_vec(),
            }),
            response: None,
        }
    }
}

/// Group and version of an object. The core group is empty.
pub(super) fn group_version(object: &Value) -> (&str, &str) {
    let api_version = unstructured::api_version(object);
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// A successful response to a request.
#[derive(Debug, Clone, Default)]
pub(super) struct OperationResponse {
    response: ResourceInterpreterResponse,
    /// `None` if the response has no list of dependencies.
    dependencies: Option<Vec<Dependency>>,
}

fn invalid(reason: impl Into<String>) -> WebhookError {
    WebhookError::Invalid(reason.into())
}

impl OperationResponse {
    pub fn parse(uid: &str, mut context: Value) -> Result<Self, WebhookError> {
        let Some(response) = context.get_mut("response").filter(|response| !response.is_null()) else {
            return Err(invalid("webhook response was absent"));
        };
        // In Go, null fields are absent.
        if let Some(fields) = response.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        let dependencies_json = response.as_object_mut().and_then(|fields| fields.remove("dependencies"));
        let dependencies = dependencies_json.map(serde_json::from_value).transpose().map_err(WebhookError::Decode)?;
        let response = serde_json::from_value(response.take()).map_err(WebhookError::Decode)?;
        OperationResponse { response, dependencies }.verify(uid)
    }

    fn verify(self, uid: &str) -> Result<Self, WebhookError> {
        let response = &self.response;
        if response.uid != uid {
            return Err(invalid(format!("expected response.uid {uid:?}, got {:?}", response.uid)));
        }
        match &response.status {
            _ if response.successful => Ok(self),
            None => Err(invalid("webhook require response.status when response.successful is false")),
            Some(status) => Err(WebhookError::Refused { code: status.code, message: status.message.clone() }),
        }
    }

    pub fn replicas(self) -> Result<(i32, Option<ReplicaRequirements>), WebhookError> {
        let replicas = self.response.replicas.ok_or_else(|| invalid("webhook returned nil response.replicas"))?;
        Ok((replicas, self.response.replica_requirements))
    }

    pub fn components(self) -> Result<Vec<Component>, WebhookError> {
        Ok(self.response.components)
    }

    pub fn dependencies(self) -> Result<DependencyList, WebhookError> {
        dependencies::verify(self.dependencies.as_deref().unwrap_or_default()).map_err(invalid)?;
        Ok(DependencyList(self.dependencies))
    }

    pub fn status(self) -> Result<Value, WebhookError> {
        let status = self.response.raw_status.ok_or_else(|| invalid("webhook returned nill response.rawStatus"))?;
        Ok(status.0)
    }

    pub fn healthy(self) -> Result<bool, WebhookError> {
        self.response.healthy.ok_or_else(|| invalid("webhook returned nil response.healthy"))
    }

    /// The JSON patch of the object. `None` if nothing changes.
    pub fn patch(self) -> Result<Option<Vec<u8>>, WebhookError> {
        let patch = self.response.patch.map(|patch| patch.0).filter(|patch| !patch.is_empty());
        match (patch, self.response.patch_type) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(invalid("webhook returned nil response.patchType")),
            (None, Some(_)) => Err(invalid("webhook returned empty response.patch")),
            (Some(patch), Some(kind)) if kind == JSON_PATCH => Ok(Some(patch)),
            (Some(_), Some(kind)) => Err(invalid(format!("webhook returned invalid response.patchType of {kind:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn deployment() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"}})
    }

    #[test]
    fn request_has_the_fields_of_its_operation() {
        let object = deployment();
        let request = OperationRequest { replicas: 4, ..OperationRequest::new(&object, Operation::ReviseReplica) };
        let expected = json!({
            "apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterContext",
            "request": {"uid": "u", "kind": {"group": "apps", "version": "v1", "kind": "Deployment"}, "name": "web",
                "namespace": "shop", "operation": "ReviseReplica", "object": object, "replicas": 4},
        });
        assert_eq!(json!(request.to_context("u")), expected);
        let observed = json!({"kind": "Node"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        let request = OperationRequest { observed: Some(&observed), ..OperationRequest::new(&node, Operation::Retain) };
        let expected = json!({"uid": "u", "kind": {"group": "", "version": "v1", "kind": "Node"}, "name": "n",
            "operation": "Retain", "object": node, "observedObject": observed, "replicas": 0});
        assert_eq!(json!(request.to_context("u"))["request"], expected);
    }

    /// Reads a response for every operation.
    fn read_all_operations(response: Value) -> Result<Value, String> {
        let parsed = OperationResponse::parse("u", json!({"response": response})).map_err(|error| error.to_string())?;
        let or_error = |reading: Result<Value, WebhookError>| reading.unwrap_or_else(|error| json!(error.to_string()));
        let text = |patch: Option<Vec<u8>>| json!(patch.map(|patch| String::from_utf8(patch).expect("text")));
        Ok(json!({
            "replicas": or_error(parsed.clone().replicas().map(|value| json!(value))),
            "components": or_error(parsed.clone().components().map(|value| json!(value))),
            "dependencies": or_error(parsed.clone().dependencies().map(|value| json!(value))),
            "status": or_error(parsed.clone().status()),
            "healthy": or_error(parsed.clone().healthy().map(Value::from)),
            "patch": or_error(parsed.patch().map(text)),
        }))
    }

    #[test]
    fn complete_response_is_read() {
        let response = json!({
            "uid": "u", "successful": true, "status": null, "replicas": 3,
            "replicaRequirements": {"resourceRequest": {"cpu": "1"}}, "components": [{"name": "a", "replicas": 1}],
            "dependencies": [{"apiVersion": "v1", "kind": "Secret", "name": "s"}], "rawStatus": {"a": 1},
            "healthy": false, "patch": "W10=", "patchType": "JSONPatch",
        });
        let expected = json!({
            "replicas": [3, {"resourceRequest": {"cpu": "1"}}], "components": [{"name": "a", "replicas": 1}],
            "dependencies": [{"apiVersion": "v1", "kind": "Secret", "name": "s"}], "status": {"a": 1},
            "healthy": false, "patch": "[]",
        });
        assert_eq!(read_all_operations(response), Ok(expected));
    }

    #[test]
    fn missing_fields_are_reported() {
        let expected = json!({
            "replicas": "received invalid webhook response: webhook returned nil response.replicas",
            "components": [],
            "dependencies": null,
            "status": "received invalid webhook response: webhook returned nill response.rawStatus",
            "healthy": "received invalid webhook response: webhook returned nil response.healthy",
            "patch": null,
        });
        assert_eq!(read_all_operations(json!({"uid": "u", "successful": true})), Ok(expected));
    }

    #[rstest]
    #[case::absent(Value::Null, "received invalid webhook response: webhook response was absent")]
    #[case::wrong_uid(
        json!({"uid": "v", "successful": true}),
        "received invalid webhook response: expected response.uid \"u\", got \"v\""
    )]
    #[case::without_a_reason(
        json!({"uid": "u", "successful": false}),
        "received invalid webhook response: webhook require response.status when response.successful is false"
    )]
    #[case::refused(
        json!({"uid": "u", "status": {"code": 400, "message": "no idea"}}),
        "webhook call failed, get status code: 400, msg: no idea"
    )]
    fn invalid_responses_are_rejected(#[case] response: Value, #[case] expected: &str) {
        assert_eq!(read_all_operations(response), Err(expected.to_owned()));
    }

    #[rstest]
    #[case(json!({"patch": "W10="}), "webhook returned nil response.patchType")]
    #[case(json!({"patchType": "JSONPatch"}), "webhook returned empty response.patch")]
    #[case(json!({"patch": "W10=", "patchType": "Merge"}), "webhook returned invalid response.patchType of \"Merge\"")]
    fn patches_need_a_type(#[case] mut response: Value, #[case] expected: &str) {
        response["uid"] = json!("u");
        response["successful"] = json!(true);
        let read = read_all_operations(response).expect("a result");
        assert_eq!(read["patch"], format!("received invalid webhook response: {expected}"));
    }

    #[test]
    fn dependencies_are_validated_and_may_be_empty() {
        let read = |list: Value| {
            let parsed = read_all_operations(json!({"uid": "u", "successful": true, "dependencies": list}));
            parsed.expect("a result")["dependencies"].clone()
        };
        assert_eq!(read(json!([])), json!([]));
        let expected =
            "received invalid webhook response: dependencies[0].kind: Invalid value: \"\": missing required kind";
        assert_eq!(read(json!([{"apiVersion": "v1", "name": "s"}])), expected);
    }
}
