//! Signing in with OpenID Connect, in the UI and at the control plane's API, with a small but real provider.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, run_browser_script, until};
use http::Method;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

mod browser;
mod provider;

use browser::Browser;
use provider::{CLIENT, Fault, Provider, SECRET};

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    crate::use_ring();
    tokio::runtime::Runtime::new().expect("a runtime")
});

/// A fleet with an identity provider.
struct Stage {
    fleet: Fleet,
    provider: Provider,
    ca: String,
    ui: String,
}

impl Stage {
    fn start(folder: &Path) -> Result<Self> {
        let (provider, ca) = RUNTIME.block_on(Provider::start())?;
        let write = |name: &str, text: &str| -> Result<String> {
            let path = folder.join(name);
            fs::write(&path, text)?;
            Ok(path.to_str().context("a path in UTF-8")?.to_owned())
        };
        let (ca_file, secret_file) = (write("ca.crt", &ca)?, write("secret", &format!("{SECRET}\n"))?);
        let issuer = provider.issuer();
        let args = [
            "--no-members",
            "--oidc-issuer-url",
            &issuer,
            "--oidc-client-id",
            CLIENT,
            "--oidc-client-secret-file",
            &secret_file,
            "--oidc-ca-file",
            &ca_file,
            "--oidc-signing-algs",
            "ES256",
            "--oidc-username-claim",
            "preferred_username",
            "--oidc-username-prefix",
            "oidc:",
            "--oidc-groups-claim",
            "groups",
            "--oidc-groups-prefix",
            "oidc:",
            "--oidc-scopes",
            "groups,offline_access",
        ];
        let fleet = Fleet::start(&folder.join("data"), &args)?;
        let ui = fleet.ui_url.split("/#").next().unwrap_or_default().to_owned();
        provider.register(&format!("{ui}/ui/oidc/callback"));
        RUNTIME.block_on(grant_view_to_crew(&fleet))?;
        Ok(Self { fleet, provider, ca, ui })
    }

    fn browser(&self) -> Result<Browser> {
        Browser::new(&self.ui, &self.ca)
    }

    /// Alice's browser, signed in.
    async fn alice(&self) -> Result<Browser> {
        let mut browser = self.browser()?;
        let page = browser.open("/ui/oidc/login").await?;
        ensure!(page.status == 200 && page.url == format!("{}/", self.ui), "{page:?}");
        Ok(browser)
    }
}

async fn config(fleet: &Fleet) -> Result<kube::Config> {
    let kubeconfig = kube::config::Kubeconfig::read_from(fleet.kubeconfig("cp"))?;
    Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?)
}

async fn admin(fleet: &Fleet) -> Result<kube::Client> {
    Ok(kube::Client::try_from(config(fleet).await?)?)
}

async fn grant_view_to_crew(fleet: &Fleet) -> Result<()> {
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "crew", "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "oidc:crew"}],
    }))?;
    Api::namespaced(admin(fleet).await?, "default").create(&PostParams::default(), &binding).await?;
    Ok(())
}

#[test]
fn users_sign_in_at_their_provider() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let stage = Stage::start(dir.path())?;
    let played = RUNTIME.block_on(async {
        acts_as_the_signed_in_user(&stage).await?;
        keys_change(&stage).await?;
        id_tokens_authenticate_kubectl(&stage).await?;
        invalid_tokens_are_refused(&stage).await?;
        sessions_are_renewed(&stage).await?;
        signs_out(&stage).await
    });
    played.with_context(|| stage.fleet.log())?;
    let log = fs::read_to_string(stage.fleet.data_dir.with_extension("log"))?;
    ensure!(!stage.provider.issued_tokens().iter().any(|token| log.contains(token)), "a token is in the log");
    ensure!(stage.fleet.stop()?.success());
    Ok(())
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn acts_as_the_signed_in_user(stage: &Stage) -> Result<()> {
    let mut browser = stage.browser()?;
    let (_, ways) = browser.ask(Method::GET, "/ui/sign-in").await?;
    ensure!(ways["oidc"] == json!({"name": "127.0.0.1", "login": format!("{}/ui/oidc/login", stage.ui)}), "{ways}");
    ensure!(browser.ask(Method::GET, "/ui/session").await?.0 == 401);

    let page = browser.open("/ui/oidc/login?return=%2Fsearch%3Fq%3Dkind%253Apod").await?;
    ensure!(page.status == 200 && page.url == format!("{}/search?q=kind%3Apod", stage.ui), "{page:?}");
    let (_, session) = browser.ask(Method::GET, "/ui/session").await?;
    ensure!(session == json!({"user": "oidc:alice", "groups": ["oidc:crew", "system:authenticated"]}), "{session}");
    // She has only her own permissions.
    let (status, list) = browser.ask(Method::GET, CONFIG_MAPS).await?;
    ensure!(status == 200 && list["kind"] == "ConfigMapList", "{list}");
    let (status, refused) = browser.ask(Method::GET, "/api/v1/namespaces/default/secrets").await?;
    ensure!(
        status == 403 && refused["message"].as_str().is_some_and(|m| m.contains("User \"oidc:alice\"")),
        "{refused}"
    );
    // Tokens are not accessible to scripts, histories or other sites.
    let seen = [browser.been.clone(), browser.set.clone()].concat();
    ensure!(
        !seen.iter().any(|text| stage.provider.issued_tokens().iter().any(|token| text.contains(token))),
        "{seen:?}"
    );
    ensure!(browser.set.iter().all(|cookie| cookie.contains("; HttpOnly; SameSite=")), "{:?}", browser.set);
    // Redirects to other addresses are refused.
    let page = stage.browser()?.open("/ui/oidc/login?return=%2F%2Fevil.example.com").await?;
    ensure!(page.url == format!("{}/", stage.ui), "{page:?}");
    Ok(())
}

/// A new key is fetched, at a limited rate.
async fn keys_change(stage: &Stage) -> Result<()> {
    stage.provider.rotate();
    let requests_before = stage.provider.key_requests();
    stage.alice().await?;
    ensure!(stage.provider.key_requests() == requests_before + 1);
    for _ in 0..20 {
        let refused = who(stage, &stage.provider.id_token(Fault::UnknownKey)).await;
        ensure!(refused.is_err(), "{refused:?}");
    }
    let requests_since = stage.provider.key_requests() - requests_before;
    ensure!(requests_since < 5, "keys were requested {requests_since} times");
    Ok(())
}

/// The user that the control plane authenticates by a bearer token.
async fn who(stage: &Stage, token: &str) -> Result<Value> {
    let mut config = config(&stage.fleet).await?;
    config.auth_info = kube::config::AuthInfo { token: Some(token.to_owned().into()), ..Default::default() };
    let reviews: Api<SelfSubjectReview> = Api::all(kube::Client::try_from(config)?);
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    Ok(serde_json::to_value(review.status.and_then(|status| status.user_info))?)
}

/// Tokens of a login plugin are accepted; a TokenReview returns the same user.
async fn id_tokens_authenticate_kubectl(stage: &Stage) -> Result<()> {
    let alice = json!({"username": "oidc:alice", "groups": ["oidc:crew", "system:authenticated"]});
    let got = who(stage, &stage.provider.id_token(Fault::None)).await?;
    ensure!(got == alice, "{got}");
    let reviews: Api<TokenReview> = Api::all(admin(&stage.fleet).await?);
    let review = async |fault: Fault| -> Result<Value> {
        let request = serde_json::from_value(json!({"spec": {"token": stage.provider.id_token(fault)}}))?;
        let answered = reviews.create(&PostParams::default(), &request).await?;
        Ok(serde_json::to_value(answered.status)?)
    };
    let good = review(Fault::None).await?;
    ensure!(good["authenticated"] == true && good["user"] == alice, "{good}");
    let cases = [
        (Fault::Expired, "oidc: verify token: token is expired (Token Expiry: "),
        (Fault::NotYet, "oidc: verify token: current time "),
        (Fault::Audience, "oidc: verify token: expected audience \"crowsnest\" got [\"another\"]"),
        (Fault::UnknownKey, "oidc: verify token: failed to verify signature: the issuer publishes no key \"key-0\""),
        (Fault::Signature, "oidc: verify token: failed to verify signature: failed to verify id token signature"),
        (
            Fault::Unsigned,
            "oidc: verify token: id token signed with unsupported algorithm, expected [\"ES256\"] got \"none\"",
        ),
        (Fault::Groups, "oidc: parse groups claim \"groups\""),
        (Fault::IssuerClaim, "invalid bearer token"),
    ];
    for (fault, expected) in cases {
        let refused = review(fault).await?;
        let why = refused["error"].as_str().unwrap_or_default();
        ensure!(refused["authenticated"] != true && why.contains(expected), "{fault:?}: {refused}");
    }
    Ok(())
}

async fn invalid_tokens_are_refused(stage: &Stage) -> Result<()> {
    let cases = [
        (Fault::Denied, 403, "The identity provider refused: access_denied: &lt;b&gt;not you&lt;/b&gt;"),
        (Fault::State, 400, "its state differs"),
        (Fault::Issuer, 400, "This response is from https://another.example.com"),
        (Fault::Challenge, 502, "the issuer returned an error: invalid_grant: invalid request"),
        (Fault::NoIdToken, 502, "returned no id_token"),
        (Fault::Nonce, 401, "its nonce differs"),
        (Fault::Audience, 401, "expected audience"),
        (Fault::IssuerClaim, 401, "id token issued by a different provider"),
        (Fault::Expired, 401, "token is expired"),
        (Fault::UnknownKey, 401, "the issuer publishes no key &quot;key-0&quot;"),
        (Fault::Signature, 401, "failed to verify id token signature"),
        (Fault::Unsigned, 401, "unsupported algorithm"),
        (Fault::Groups, 401, "parse groups claim"),
    ];
    for (fault, status, expected) in cases {
        let mut browser = stage.browser()?;
        stage.provider.set_fault(fault);
        let page = browser.open("/ui/oidc/login?return=%2Fsearch%3Fq%3Da").await?;
        stage.provider.set_fault(Fault::None);
        ensure!(page.status == status && page.text.contains(expected), "{fault:?}: {page:?}");
        ensure!(page.text.contains("href=\"/ui/oidc/login?return=%2Fsearch%3Fq%3Da\""), "{page:?}");
        ensure!(browser.ask(Method::GET, "/ui/session").await?.0 == 401, "{fault:?}");
        // The same browser can retry.
        ensure!(browser.open("/ui/oidc/login").await?.status == 200, "{fault:?}");
    }
    // A callback that this browser did not request, and one that has been used.
    let mut alice = stage.alice().await?;
    let callback = alice.been.iter().find(|url| url.contains("code=")).context("no answer")?.clone();
    for browser in [&mut stage.browser()?, &mut alice] {
        let page = browser.open(&callback).await?;
        ensure!(page.status == 400 && page.text.contains("has not started a sign-in here"), "{page:?}");
    }
    Ok(())
}

async fn sessions_are_renewed(stage: &Stage) -> Result<()> {
    // Tokens with a short lifetime are renewed for each request.
    stage.provider.set_lifetime(5);
    let mut browser = stage.alice().await?;
    let before = stage.provider.renewals();
    let requests = (0..8).map(|_| {
        let mut browser = browser.clone();
        async move { browser.ask(Method::GET, CONFIG_MAPS).await }
    });
    for body in futures::future::join_all(requests).await {
        let (status, body) = body?;
        ensure!(status == 200, "{body}");
    }
    ensure!(stage.provider.renewals() > before);
    // Valid ones are kept.
    stage.provider.set_lifetime(3600);
    ensure!(browser.ask(Method::GET, "/ui/session").await?.0 == 200);
    let renewed = stage.provider.renewals();
    ensure!(browser.ask(Method::GET, "/ui/session").await?.0 == 200);
    ensure!(stage.provider.renewals() == renewed);
    // The provider ends a session, or returns a token of another user.
    stage.provider.set_lifetime(5);
    for (fault, expected) in [
        (Fault::None, "your session is no longer renewed: the issuer returned an error: invalid_grant"),
        (Fault::Subject, "the issuer renewed it with another user"),
        (Fault::NoIdToken, "the issuer renewed it without an id_token"),
        (Fault::Expired, "token is expired"),
    ] {
        let mut browser = stage.alice().await?;
        match fault {
            Fault::None => stage.provider.invalidate_refresh_tokens(),
            fault => stage.provider.set_fault(fault),
        }
        let (status, ended) = browser.ask(Method::GET, "/ui/session").await?;
        stage.provider.set_fault(Fault::None);
        let message = ended["message"].as_str().unwrap_or_default();
        ensure!(
            status == 401 && message.contains(expected) && message.ends_with("; sign in again"),
            "{fault:?}: {ended}"
        );
        let (_, over) = browser.ask(Method::GET, CONFIG_MAPS).await?;
        ensure!(over["message"] == "your session has ended; sign in again", "{over}");
    }
    stage.provider.set_lifetime(3600);
    Ok(())
}

async fn signs_out(stage: &Stage) -> Result<()> {
    let mut browser = stage.alice().await?;
    let mut stolen = browser.clone();
    let (status, ended) = browser.ask(Method::DELETE, "/ui/session").await?;
    let there = format!("{}/logout?client_id={CLIENT}", stage.provider.issuer());
    ensure!(status == 200 && ended["endSession"] == there.as_str(), "{ended}");
    ensure!(browser.ask(Method::GET, "/ui/session").await?.1["message"] == "Unauthorized");
    ensure!(stolen.ask(Method::GET, "/ui/session").await?.0 == 401);
    let last = stage.provider.issued_tokens().iter().rev().find(|token| !token.contains('.')).cloned();
    ensure!(stage.provider.revoked().last() == last.as_ref(), "{:?}", stage.provider.revoked());
    ensure!(browser.open(&there).await?.text == "You are signed out.");
    // Pages of other sites cannot send requests in her name, nor requests without the header that forms cannot set.
    let mut browser = stage.alice().await?;
    ensure!(browser.open("/ui/session").await?.status == 403);
    browser.forget();
    ensure!(browser.ask(Method::GET, "/ui/session").await?.0 == 401);
    Ok(())
}

/// In a real browser.
#[test]
fn pages_redirect_to_the_provider_and_back() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let stage = Stage::start(dir.path())?;
    // Tokens with a short lifetime are renewed for each request, without interaction.
    stage.provider.set_lifetime(9);
    let before = stage.provider.renewals();
    let output = run_browser_script("oidc", &[stage.ui.as_ref(), stage.provider.issuer().as_ref()], &[]);
    if output.with_context(|| stage.fleet.log())?.is_none() {
        return Ok(());
    }
    ensure!(stage.provider.renewals() > before, "the pages' session was never renewed");
    ensure!(stage.fleet.stop()?.success());
    Ok(())
}

/// An unavailable provider prevents neither the start nor sign-in with a token.
#[test]
fn an_unavailable_provider_is_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let nowhere = "https://127.0.0.1:9/realms/fleet";
    let args = ["--no-members", "--oidc-issuer-url", nowhere, "--oidc-client-id", CLIENT];
    let fleet = Fleet::start(&dir.path().join("data"), &args)?;
    let (ui, token) = fleet.ui_url.split_once("/#token=").context("no token")?;
    let warning = format!("sign-in with {nowhere} is not available yet");
    until("the warning", || Ok(fs::read_to_string(fleet.data_dir.with_extension("log"))?.contains(&warning)))?;
    RUNTIME.block_on(async {
        let page = reqwest::get(format!("{ui}/ui/oidc/login")).await?;
        ensure!(page.status() == 502, "{page:?}");
        let page = page.text().await?;
        ensure!(page.contains("Cannot connect to the identity provider: "), "{page}");
        ensure!(page.contains("--oidc-ca-file, the address and the CA"), "{page}");
        let request = reqwest::Client::new().post(format!("{ui}/ui/session")).header("x-crowsnest-client", "test");
        let response = request.json(&json!({"token": token})).send().await?;
        ensure!(response.status() == 200, "{response:?}");
        Ok(())
    })?;
    ensure!(fleet.stop()?.success());
    Ok(())
}
