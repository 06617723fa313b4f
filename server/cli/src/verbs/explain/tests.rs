//! Golden tests of printed explanations.

use super::*;
use crowsnest_apimachinery::names::Gvr;

fn render_explanation(explanation: &str) -> String {
    let explanation: Value = serde_saphyr::from_str(explanation).unwrap();
    let mut out = Vec::new();
    render(&mut out, &explanation).unwrap();
    String::from_utf8(out).unwrap()
}

#[rstest::rstest]
#[case::divided(include_str!("divided.yaml"), include_str!("divided.txt"))]
#[case::waiting(include_str!("waiting.yaml"), include_str!("waiting.txt"))]
#[case::needed(include_str!("needed.yaml"), include_str!("needed.txt"))]
fn printed_explanations_match_the_golden_files(#[case] explanation: &str, #[case] expected: &str) {
    let shown = render_explanation(explanation);
    assert_eq!(shown, expected, "{shown}");
}

#[rstest::rstest]
#[case("apps", true, "web", "/namespaces/shop/explanations/deployments.apps:web")]
#[case("", true, "web", "/namespaces/shop/explanations/deployments:web")]
#[case("apps", false, "system:a b%", "/clusterexplanations/deployments.apps:system:a%20b%2525")]
fn paths_contain_the_template(
    #[case] group: &str,
    #[case] namespaced: bool,
    #[case] name: &str,
    #[case] expected: &str,
) {
    let kind = Kind { gvr: Gvr::new(group, "v1", "deployments"), kind: "Deployment".to_owned(), namespaced };
    assert_eq!(explanation_path(&kind, "shop", name), format!("{API_PATH}{expected}"));
}

#[rstest::rstest]
#[case::core("v1", "ConfigMap shop/web")]
#[case::short("apps/v1", "ConfigMap shop/web")]
#[case::kubernetes("networking.k8s.io/v1", "ConfigMap shop/web")]
#[case::karmada("policy.karmada.io/v1alpha1", "ConfigMap shop/web")]
#[case::other("example.org/v1", "ConfigMap.example.org shop/web")]
fn kinds_of_other_groups_are_printed_with_the_group(#[case] api_version: &str, #[case] expected: &str) {
    let reference =
        serde_json::json!({"apiVersion": api_version, "kind": "ConfigMap", "namespace": "shop", "name": "web"});
    assert_eq!(format_reference(&reference), expected);
}
