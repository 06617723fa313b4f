//! Reads the writes that a member has received from its audit log.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use crowsnest_tests::{Apiserver, wait_for};
use kube::Client;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::serve::test_env::objects;

/// Resources whose creation is a review: the API server stores nothing.
const REVIEWS: [&str; 4] =
    ["subjectaccessreviews", "selfsubjectaccessreviews", "tokenreviews", "selfsubjectrulesreviews"];

/// The user as which a kube-apiserver writes by itself: it renews its lease, and records the last use of a token.
const APISERVER: &str = "system:apiserver";

/// Number of markers requested so far.
static MARKERS: AtomicUsize = AtomicUsize::new(0);

/// Successful and failed writes so far, except those of the API server itself, as `VERB URI by USER`.
pub fn member_writes(runtime: &Runtime, member: &Apiserver, member_client: &Client) -> Result<Vec<String>> {
    // The log is ordered: once it contains the request for this marker, it contains all earlier requests.
    let marker = format!("mark-{}", MARKERS.fetch_add(1, Ordering::Relaxed));
    let maps = objects(member_client, "", "v1", "ConfigMap", Some("default"));
    runtime.block_on(maps.get_opt(&marker))?;
    let mut log = String::new();
    wait_for("the audit log to be written", || {
        log = fs::read_to_string(member.audit_log())?;
        Ok(log.contains(&marker))
    })?;
    let mut writes = Vec::new();
    // The last line may be incomplete.
    for event in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let verb = event["verb"].as_str().unwrap_or_default();
        let resource = event["objectRef"]["resource"].as_str().unwrap_or_default();
        let is_write = matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection");
        let is_by_apiserver = event["user"]["username"] == APISERVER;
        if is_write && event["stage"] == "ResponseComplete" && !is_by_apiserver && !REVIEWS.contains(&resource) {
            writes.push(format!("{verb} {} by {}", event["requestURI"], event["user"]["username"]));
        }
    }
    Ok(writes)
}
