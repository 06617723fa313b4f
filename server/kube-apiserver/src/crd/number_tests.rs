//! Integral floats in stored CRDs and custom resources. Go's JSON encoder prints them as integers.

use std::time::Duration;

use crowsnest_registry::storage::{Body, ObjectKey, Precondition, ResourceKey, Write};
use serde_json::{Value, json};

use super::served_tests::{definition, send, wait_until_served};
use crate::{ApiServer, Config, Data};

const TIMEOUT: Duration = Duration::from_secs(30);
const JSON: &str = "application/json";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CARS: &str = "/apis/example.com/v1/namespaces/default/cars";
/// JSON pointer to the default of the field `doors` in version `v1`.
const DEFAULT: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/doors/default";

/// A CRD whose versions have the integer fields `wheels` and `doors`; `doors` has this default.
fn definition_with_default(default: Value) -> Value {
    let mut definition = definition(json!({"strategy": "None"}));
    let mut schema = definition["spec"]["versions"][0]["schema"].clone();
    let doors = json!({"type": "integer", "default": default});
    schema["openAPIV3Schema"]["properties"]["spec"]["properties"]["doors"] = doors;
    for version in [0, 1] {
        definition["spec"]["versions"][version]["schema"] = schema.clone();
    }
    definition
}

fn named_car(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Car", "metadata": {"name": name}, "spec": {}})
}

#[tokio::test]
async fn defaults_are_normalized() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let (code, created) =
        send(&client, &format!("POST {DEFINITIONS}"), JSON, definition_with_default(json!(2.0))).await;
    assert_eq!((code, created.pointer(DEFAULT)), (201, Some(&json!(2))), "{created}");
    wait_until_served(&server, true).await;
    let (code, created) = send(&client, &format!("POST {CARS}"), JSON, named_car("a")).await;
    assert_eq!((code, &created["spec"]), (201, &json!({"doors": 2})));

    // A schema that was stored with a float.
    let store = &server.registry().store;
    let table = ResourceKey::new("apiextensions.k8s.io", "customresourcedefinitions");
    let key = ObjectKey::new("", "cars.example.com");
    let mut catalog = server.registry().catalog.subscribe();
    let write_float = async {
        loop {
            let stored = store.get(&table, &key).unwrap();
            let mut definition = stored.body.decode(stored.revision).unwrap();
            *definition.pointer_mut(DEFAULT).unwrap() = json!(3.0);
            let precondition = Precondition::Revision(stored.revision);
            let body = Some(Body::encode(&definition).unwrap());
            // The controller may write the status at the same time.
            if store.write(Write { table: table.clone(), key: key.clone(), precondition, body }).await.is_ok() {
                break;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, write_float).await.unwrap();
    let served_default = async {
        loop {
            let (_, created) = send(&client, &format!("POST {CARS}?dryRun=All"), JSON, named_car("b")).await;
            let doors = created["spec"]["doors"].clone();
            if doors.as_f64() == Some(3.0) {
                return doors;
            }
            catalog.changed().await.unwrap();
        }
    };
    assert_eq!(tokio::time::timeout(TIMEOUT, served_default).await.unwrap(), json!(3));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn stored_objects_are_normalized() {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let client = server.admin();
    let created = send(&client, &format!("POST {DEFINITIONS}"), JSON, definition_with_default(json!(2))).await;
    assert_eq!(created.0, 201, "{}", created.1);
    wait_until_served(&server, true).await;
    let car = json!({"apiVersion": "example.com/v1", "kind": "Car",
        "metadata": {"name": "a", "namespace": "default", "uid": "u"}, "spec": {"wheels": 4.0}});
    let write = Write {
        table: ResourceKey::new("example.com", "cars"),
        key: ObjectKey::new("default", "a"),
        precondition: Precondition::Absent,
        body: Some(Body::encode(&car).unwrap()),
    };
    server.registry().store.write(write).await.unwrap();
    let expected = json!({"doors": 2, "wheels": 4});
    for version in ["v1", "v1beta1"] {
        let cars = format!("GET /apis/example.com/{version}/namespaces/default/cars");
        let (code, object) = send(&client, &format!("{cars}/a"), JSON, Value::Null).await;
        assert_eq!((code, &object["spec"]), (200, &expected), "{version}");
        let (code, list) = send(&client, &cars, JSON, Value::Null).await;
        assert_eq!((code, &list["items"][0]["spec"]), (200, &expected), "{version}");
    }
    server.stop().await.unwrap();
}
