//! Describes PersistentVolumeClaims and the pods that use them. Pure.

use serde_json::Value;

use super::{CONDITIONS, PODS, Related, conditions, unknown};
use crate::verbs::describe::render::marks;
use crate::verbs::describe::sheet::{Sheet, joined, list, or_none, plain};

pub(super) fn claim(sheet: &mut Sheet, claim: &Value, related: &Related) {
    let (metadata, spec, status) = (&claim["metadata"], &claim["spec"], &claim["status"]);
    sheet.say(0, "StorageClass", spec["storageClassName"].as_str().unwrap_or_default());
    match metadata["deletionTimestamp"].as_str() {
        Some(since) => sheet.say(0, "Status", format!("Terminating (since {since})")),
        None => sheet.say(0, "Status", or_none(&status["phase"])),
    }
    sheet.say(0, "Volume", spec["volumeName"].as_str().unwrap_or_default());
    marks(sheet, claim);
    sheet.say(
        0,
        "Finalizers",
        format!("[{}]", list(&metadata["finalizers"]).iter().map(plain).collect::<Vec<_>>().join(" ")),
    );
    let (capacity, modes) = match spec["volumeName"].as_str() {
        Some(_) => {
            (status["capacity"]["storage"].as_str().unwrap_or_default().to_owned(), joined(&status["accessModes"], ","))
        }
        None => (String::new(), String::new()),
    };
    sheet.say(0, "Capacity", capacity);
    sheet.say(0, "Access Modes", modes);
    sheet.maybe(0, "VolumeMode", &spec["volumeMode"]);
    if spec["dataSource"].is_object() {
        let source = &spec["dataSource"];
        sheet.head(0, "DataSource");
        sheet.maybe(2, "APIGroup", &source["apiGroup"]);
        sheet.say(2, "Kind", plain(&source["kind"]));
        sheet.say(2, "Name", plain(&source["name"]));
    }
    match related.get(PODS) {
        Some(Ok(pods)) => {
            let users: Vec<String> = pods
                .iter()
                .filter(|pod| uses(pod, &metadata["name"]))
                .map(|pod| plain(&pod["metadata"]["name"]))
                .collect();
            sheet.list(0, "Used By", &users);
        }
        Some(Err(why)) => sheet.say(0, "Used By", unknown(why)),
        None => {}
    }
    conditions(sheet, claim, &CONDITIONS);
}

/// True if the pod mounts the claim, by name or as an ephemeral volume.
fn uses(pod: &Value, claim: &Value) -> bool {
    let own = |volume: &Value| {
        let (pod, volume) = (pod["metadata"]["name"].as_str(), volume["name"].as_str());
        pod.zip(volume).is_some_and(|(pod, volume)| *claim == format!("{pod}-{volume}").as_str())
    };
    list(&pod["spec"]["volumes"]).iter().any(|volume| {
        volume["persistentVolumeClaim"]["claimName"] == *claim && claim.is_string()
            || volume["ephemeral"].is_object() && own(volume)
    })
}
