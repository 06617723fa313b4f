//! Compares responses of the search API with its OpenAPI document: every documented path is
//! requested, every response matches its status code and media type, and contains no undocumented fields.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use crowsnest_tests::{Fleet, Kubectl, wait_for};
use serde_json::{Value, json};

use super::{ROOT, get_raw, path};

static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

const MERGE_PATCH: &str = "application/merge-patch+json";
/// Prefix of the names of the search API's schemas.
const SCHEMA_PREFIX: &str = "io.crowsnest.search.v1alpha1.";
const DEPLOYMENT: &str = "cluster=member1&apiVersion=apps/v1&resource=deployments&namespace=shop&name=checkout";
const EVENTS: &str = "text/event-stream";

/// Client that validates each response against the served OpenAPI document.
struct ValidatingClient {
    client: kube::Client,
    document: Value,
    /// Path and method of each documented operation requested so far.
    requested: BTreeSet<(String, String)>,
}

pub fn check_responses(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    // Creates an earlier revision.
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member1"));
    member.run_ok(&["annotate", "deployment", "checkout", "-n", "shop", "seen=yes"], "")?;
    wait_for("an earlier revision to be stored", || {
        let history = get_raw(kubectl, &format!("{ROOT}/history?{DEPLOYMENT}"))?;
        Ok(history["versions"].as_array().is_some_and(|versions| versions.len() > 1))
    })?;
    let config = std::fs::read_to_string(fleet.kubeconfig("cp"))?;
    RUNTIME.block_on(async {
        let mut client = ValidatingClient::connect(&config).await?;
        client.request_queries().await?;
        client.request_objects().await?;
        client.request_saved_searches().await?;
        client.request_messages().await?;
        client.check_all_paths_were_requested()
    })
}

impl ValidatingClient {
    async fn connect(kubeconfig: &str) -> Result<Self> {
        let file = kube::config::Kubeconfig::from_yaml(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?;
        let client = kube::Client::try_from(config)?;
        let request = http::Request::get(format!("/openapi/v3{ROOT}")).body(Vec::new())?;
        let mut document: Value = client.request(request).await?;
        let schemas = document
            .pointer_mut("/components/schemas")
            .and_then(Value::as_object_mut)
            .context("the OpenAPI document has no schemas")?;
        for (_, schema) in schemas.iter_mut().filter(|(name, _)| name.starts_with(SCHEMA_PREFIX)) {
            deny_undocumented_fields(schema);
        }
        Ok(Self { client, document, requested: BTreeSet::new() })
    }

    async fn request_queries(&mut self) -> Result<()> {
        let base_query = "ns:shop label:app=checkout";
        for (resource, query, extra_query) in [
            ("query", format!("{base_query} group:kind"), "&facets=kind,label:app,region&limit=2"),
            ("query", "checkout".to_owned(), ""),
            ("query", base_query.to_owned(), "&columns=label:app,print:Age,print:*"),
            ("query", "chekout kind:deployment ns:shop".to_owned(), ""),
            ("query", "at:now-1h during:x kind:".to_owned(), ""),
            ("count", base_query.to_owned(), ""),
            ("explain", format!("{base_query} (kind:pod OR -status:Running) restarts:>1 at:now-1m"), ""),
            ("suggest", "kind:dep".to_owned(), ""),
            ("suggest", "kind:pod restarts:".to_owned(), ""),
            ("suggest", "k".to_owned(), ""),
            ("suggest", "region:".to_owned(), ""),
            ("export", base_query.to_owned(), ""),
            ("export", base_query.to_owned(), "&format=csv"),
            ("logs", format!("{base_query} kind:pod"), "&tail=1"),
            ("status", String::new(), ""),
        ] {
            self.get(&path(resource, &query, extra_query), "", 200).await?;
        }
        self.get(&path("query", base_query, ""), EVENTS, 200).await?;
        self.get(&path("query", &format!("{base_query} group:kind"), ""), EVENTS, 200).await?;
        for (resource, extra_query, code) in [
            ("query", "&facets=colour", 400),
            ("query", "&cursor=x", 400),
            ("suggest", "&limit=x", 400),
            ("export", "&format=xml", 400),
            ("export", "+scope:nothing", 400),
            ("logs", "&tail=x", 422),
        ] {
            self.get(&path(resource, "kind:pod", extra_query), "", code).await?;
        }
        // An anonymous user has no access.
        let request = http::Request::get(path("count", "", "")).header("Impersonate-User", "system:anonymous");
        let request = request.header("Impersonate-Group", "system:unauthenticated").body(Vec::new())?;
        self.send("count", request, 403).await.map(drop)
    }

    async fn request_objects(&mut self) -> Result<()> {
        let history = self.get(&format!("{ROOT}/history?{DEPLOYMENT}"), "", 200).await?;
        let versions = history["versions"].as_array().context("the history has no versions")?;
        ensure!(versions.len() > 1, "{history}");
        self.get(&format!("{ROOT}/history?{DEPLOYMENT}&seq={}", versions[1]["seq"]), "", 200).await?;
        for (resource, extra_query, code) in [
            ("diff", "", 200),
            ("diff", "&with=member2", 200),
            ("graph", "&depth=3", 200),
            ("blastradius", "", 200),
            ("blastradius", "&depth=2&dependencies=true", 200),
            ("blastradius", "x", 404),
            ("blastradius", "&depth=8", 200),
            ("blastradius", "&depth=x", 400),
            ("blastradius", "&depth=9", 400),
            ("blastradius", "&dependencies=yes", 400),
            ("history", "x", 404),
            ("history", "&seq=1", 404),
            ("diff", "&from=x", 400),
            ("graph", "&depth=5", 200),
            ("graph", "&depth=x", 400),
            ("graph", "&depth=6", 400),
        ] {
            self.get(&format!("{ROOT}/{resource}?{DEPLOYMENT}{extra_query}"), "", code).await?;
        }
        for (pattern, extra_query, code) in [
            ("deployment%20-OWNS*-%3E%20pod", "", 200),
            ("deployment%20-OWNS*-%3E%20pod", "&shortest=true&q=checkout&limit=1", 200),
            ("pod", "&explain=true", 200),
            ("pod%20-%3E", "", 400),
            ("", "", 400),
            ("pod", "&limit=x", 400),
            ("pod", "&limit=10000", 200),
            ("pod", "&limit=10001", 400),
            ("pod", "&shortest=yes", 400),
        ] {
            self.get(&format!("{ROOT}/paths?p={pattern}{extra_query}"), "", code).await?;
        }
        for (parameters, code) in [
            // The journal contains an entry for the Cluster that became ready.
            ("about=member1", 200),
            ("about=deployment/shop/checkout&at=now&within=1h", 200),
            ("about=deployment/shop/checkout&limit=1000", 200),
            ("about=deployment/shop/checkout&limit=1001", 400),
            ("about=deployment/shop/checkout&at=x", 400),
            ("at=now", 400),
        ] {
            self.get(&format!("{ROOT}/journal?{parameters}"), "", code).await?;
        }
        self.get(&format!("{ROOT}/graph?cluster=member1"), "", 400).await.map(drop)
    }

    async fn request_saved_searches(&mut self) -> Result<()> {
        let resource = "savedsearches";
        let search =
            json!({"spec": {"title": "Shapes", "query": "kind:pod", "description": "all of them", "shared": true}});
        let created = self.write("POST", resource, &search, 201).await?;
        let saved_search =
            format!("{resource}/{}", created["metadata"]["name"].as_str().context("the object has no name")?);
        self.write("POST", resource, &search, 409).await?;
        self.write("POST", resource, &json!({"spec": {"title": " ", "query": "x"}}), 422).await?;
        self.write("POST", resource, &json!({"spec": 1}), 400).await?;
        self.get(&format!("{ROOT}/{resource}"), "", 200).await?;
        self.get(&format!("{ROOT}/{saved_search}"), "", 200).await?;
        self.write("PUT", &saved_search, &search, 200).await?;
        self.write("PUT", &saved_search, &json!({"metadata": {"resourceVersion": "1"}, "spec": search["spec"]}), 409)
            .await?;
        self.patch(&saved_search, MERGE_PATCH, &json!({"spec": {"description": "each of them"}}), 200).await?;
        self.patch(&saved_search, MERGE_PATCH, &json!({"metadata": {"resourceVersion": "1"}}), 409).await?;
        self.patch(&saved_search, "application/json", &json!({}), 415).await?;
        let patched = self.get(&format!("{ROOT}/{saved_search}"), "", 200).await?;
        ensure!(patched["spec"]["description"] == "each of them", "{patched}");
        self.write("DELETE", &saved_search, &Value::Null, 200).await?;
        self.get(&format!("{ROOT}/{saved_search}"), "", 404).await.map(drop)
    }

    /// Messages of the Model Context Protocol.
    async fn request_messages(&mut self) -> Result<()> {
        let message =
            |method: &str, params: &Value| json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let search = json!({"name": "search", "arguments": {"query": "ns:shop"}});
        self.write("POST", "mcp", &message("tools/call", &search), 200).await?;
        self.write("POST", "mcp", &message("unknown", &json!({})), 200).await?;
        self.write("POST", "mcp", &json!([]), 400).await?;
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
        let body = message("unknown", &json!({"_meta": meta})).to_string().into_bytes();
        let request = http::Request::post(format!("{ROOT}/mcp")).header("Content-Type", "application/json");
        let request =
            request.header("MCP-Protocol-Version", "2026-07-28").header("Mcp-Method", "unknown").body(body)?;
        self.send("mcp", request, 404).await.map(drop)
    }

    fn check_all_paths_were_requested(&self) -> Result<()> {
        let paths = self.document["paths"].as_object().context("the OpenAPI document has no paths")?;
        let documented = paths.iter().flat_map(|(path, item)| {
            let methods = item.as_object().into_iter().flatten().filter(|(_, operation)| operation.is_object());
            methods.map(|(method, _)| (path.clone(), method.clone()))
        });
        let missing: Vec<_> = documented.filter(|operation| !self.requested.contains(operation)).collect();
        ensure!(missing.is_empty(), "documented operations that were not requested: {missing:?}");
        Ok(())
    }

    async fn get(&mut self, path: &str, accept: &str, code: u16) -> Result<Value> {
        let accept = if accept.is_empty() { "application/json, */*" } else { accept };
        let request = http::Request::get(path).header("Accept", accept).body(Vec::new())?;
        let below = path.strip_prefix(ROOT).context("the path is not one of the group")?.trim_start_matches('/');
        let resource = below.split('?').next().unwrap_or_default().to_owned();
        self.send(&resource, request, code).await
    }

    async fn write(&mut self, method: &str, resource: &str, body: &Value, code: u16) -> Result<Value> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(format!("{ROOT}/{resource}"));
        let request = request.header("Content-Type", "application/json").body(body)?;
        self.send(resource, request, code).await
    }

    async fn patch(&mut self, resource: &str, media_type: &str, body: &Value, code: u16) -> Result<Value> {
        let request = http::Request::patch(format!("{ROOT}/{resource}")).header("Content-Type", media_type);
        self.send(resource, request.body(body.to_string().into_bytes())?, code).await
    }

    /// Sends a request and validates the response.
    async fn send(&mut self, resource: &str, request: http::Request<Vec<u8>>, code: u16) -> Result<Value> {
        let template = match resource.split_once('/') {
            Some((resource, _)) => format!("{ROOT}/{resource}/{{name}}"),
            None => format!("{ROOT}/{resource}"),
        };
        let (method, uri) = (request.method().as_str().to_lowercase(), request.uri().to_string());
        let (parts, body) = self.client.send(request.map(kube::client::Body::from)).await?.into_parts();
        let body = http_body_util::BodyExt::collect(body).await?.to_bytes();
        let text = std::str::from_utf8(&body)?;
        ensure!(parts.status.as_u16() == code, "{method} {uri} returned {} instead of {code}: {text}", parts.status);
        let media = parts.headers.get("content-type").context("the response has no content type")?.to_str()?;
        let media = media.split(';').next().unwrap_or_default();
        let content = &self.document["paths"][&template][&method]["responses"][code.to_string()]["content"][media];
        let schema = &content["schema"];
        ensure!(schema.is_object(), "{method} {uri}: {code} with {media} is not documented");
        let value = self.validate(schema, media, text);
        let value = value.with_context(|| format!("{method} {uri} returned {code} with {media}: {text}"))?;
        self.requested.insert((template, method));
        Ok(value)
    }

    fn validate(&self, schema: &Value, media: &str, text: &str) -> Result<Value> {
        match media {
            "application/json" => {
                let value: Value = serde_json::from_str(text)?;
                self.validate_value(schema, &value)?;
                Ok(value)
            }
            "application/jsonl" => {
                ensure!(text.lines().count() > 1, "expected more than one exported object: {text}");
                text.lines().try_for_each(|line| self.validate_value(schema, &serde_json::from_str(line)?))?;
                Ok(Value::Null)
            }
            EVENTS => {
                let events = &self.resolve(schema)["x-events"];
                let mut names = Vec::new();
                for event in text.split("\n\n").filter(|event| event.starts_with("event: ")) {
                    let (name, data) =
                        event["event: ".len()..].split_once("\ndata: ").context("the event has no data")?;
                    let schema = events.get(name).with_context(|| format!("the event {name} is not documented"))?;
                    self.validate_value(schema, &serde_json::from_str(data)?).with_context(|| name.to_owned())?;
                    names.push(name);
                }
                ensure!(names.contains(&"matches") && names.last() == Some(&"done"), "{names:?}");
                Ok(Value::Null)
            }
            _ => self.validate_value(schema, &text.into()).map(|()| Value::Null),
        }
    }

    /// Follows a `$ref`.
    fn resolve<'d>(&'d self, schema: &'d Value) -> &'d Value {
        let target = schema["$ref"].as_str().and_then(|target| self.document.pointer(target.strip_prefix('#')?));
        target.unwrap_or(schema)
    }

    /// Validates a value. Among alternative schemas (`anyOf`), the one of the value's kind is used.
    fn validate_value(&self, schema: &Value, value: &Value) -> Result<()> {
        let of_kind = |schema: &&Value| self.resolve(schema)["properties"]["kind"]["enum"][0] == value["kind"];
        let schema = schema["anyOf"].as_array().and_then(|schemas| schemas.iter().find(of_kind)).unwrap_or(schema);
        let root = json!({"allOf": [schema], "components": self.document["components"]});
        let validator = jsonschema::options().should_validate_formats(true).build(&root)?;
        let errors: Vec<String> =
            validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
        if !errors.is_empty() {
            bail!("{}", errors.join("\n"));
        }
        Ok(())
    }
}

/// Sets `additionalProperties: false` in all schemas of objects, so that validation rejects undocumented fields.
fn deny_undocumented_fields(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(deny_undocumented_fields);
            let has_properties = fields.get("properties").is_some_and(Value::is_object) && fields.contains_key("type");
            if has_properties && !fields.contains_key("additionalProperties") {
                fields.insert("additionalProperties".to_owned(), false.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(deny_undocumented_fields),
        _ => {}
    }
}

#[test]
fn undocumented_fields_are_rejected() {
    let mut schema = json!({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}});
    deny_undocumented_fields(&mut schema);
    let is_valid = |value: Value| jsonschema::is_valid(&schema, &value);
    assert!(is_valid(json!({"a": {"b": 1}})) && !is_valid(json!({"a": {"c": 1}})) && !is_valid(json!({"d": 1})));
}
