//! Printed plans, compared with golden files, and the exit codes and default namespaces of `crowsnest plan`.

use super::*;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_members::ApiResource;
use rstest::rstest;

fn status(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap()
}

#[rstest]
#[case::moved(include_str!("moved.yaml"), include_str!("moved.txt"))]
#[case::unplaceable(include_str!("unplaceable.yaml"), include_str!("unplaceable.txt"))]
#[case::no_affected_templates(include_str!("no-affected-templates.yaml"), include_str!("no-affected-templates.txt"))]
fn printed_plans_match_the_golden_files(#[case] plan: &str, #[case] expected: &str) {
    let mut out = Vec::new();
    render(&mut out, &status(plan)).unwrap();
    let shown = String::from_utf8(out).unwrap();
    assert_eq!(shown, expected, "{shown}");
}

#[rstest]
#[case(include_str!("moved.yaml"), false, false, 0)]
#[case(include_str!("moved.yaml"), true, false, EXIT_CHANGED)]
#[case(include_str!("unplaceable.yaml"), true, true, 1)]
#[case(include_str!("no-affected-templates.yaml"), true, false, EXIT_PARTIAL)]
#[case(include_str!("no-affected-templates.yaml"), true, true, 0)]
fn exit_codes_match_the_plan(
    #[case] plan: &str,
    #[case] fail_on_change: bool,
    #[case] allow_partial: bool,
    #[case] expected: u8,
) {
    assert_eq!(exit_code(&status(plan), fail_on_change, allow_partial), expected);
}

#[rstest]
#[case("ConfigMap", None, "", Ok("default"))]
#[case("ConfigMap", Some("shop"), "", Ok("shop"))]
#[case("ConfigMap", None, "own", Ok("own"))]
#[case("ConfigMap", Some("shop"), "own", Err("does not match the namespace \"shop\""))]
#[case("Namespace", Some("shop"), "", Ok(""))]
#[case("Widget", None, "", Err("no matches for kind \"Widget\" in version \"v1\""))]
fn objects_get_the_default_namespace(
    #[case] kind: &str,
    #[case] requested: Option<&str>,
    #[case] manifest_namespace: &str,
    #[case] expected: Result<&str, &str>,
) {
    let resource = |kind: &str, namespaced| ApiResource {
        gvr: Gvr::new("", "v1", &format!("{}s", kind.to_lowercase())),
        kind: kind.to_owned(),
        singular: kind.to_lowercase(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced,
        verbs: Default::default(),
        subresources: Default::default(),
        preferred: true,
    };
    let served = ApiResources {
        resources: vec![resource("ConfigMap", true), resource("Namespace", false)],
        ..Default::default()
    };
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}});
    if !manifest_namespace.is_empty() {
        object["metadata"]["namespace"] = manifest_namespace.into();
    }
    match (set_namespace(&mut object, &served, requested, "default"), expected) {
        (Ok(()), Ok(namespace)) => assert_eq!(text(&object, "/metadata/namespace"), namespace),
        (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
        (got, expected) => panic!("{got:?} is not {expected:?}"),
    }
}
