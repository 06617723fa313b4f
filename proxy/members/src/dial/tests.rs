//! Minimal proxies between this process and a member: each records the request and then echoes.

use super::*;
use rstest::rstest;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

async fn http_connect(mut client: TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
    echo(client).await;
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    head.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("|")
}

async fn socks5(mut client: TcpStream) -> String {
    let mut target = String::new();
    let [_version, count] = read(&mut client).await;
    let mut methods = vec![0; count.into()];
    client.read_exact(&mut methods).await.unwrap();
    let with_password = methods.contains(&2);
    client.write_all(&[5, if with_password { 2 } else { 0 }]).await.unwrap();
    if with_password {
        let [_version] = read(&mut client).await;
        let (user, password) = (text(&mut client).await, text(&mut client).await);
        target = format!("{user}:{password}@");
        client.write_all(&[1, 0]).await.unwrap();
    }
    let [_version, _connect, _reserved, 3] = read(&mut client).await else { panic!("no name") };
    target += &text(&mut client).await;
    let port = client.read_u16().await.unwrap();
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
    echo(client).await;
    format!("{target}:{port}")
}

async fn read<const N: usize>(client: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await.unwrap();
    bytes
}

/// A length-prefixed text.
async fn text(client: &mut TcpStream) -> String {
    let mut bytes = vec![0; client.read_u8().await.unwrap().into()];
    client.read_exact(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

async fn echo(mut client: TcpStream) {
    let (mut read, mut write) = client.split();
    tokio::io::copy(&mut read, &mut write).await.unwrap();
}

async fn listen<F>(serve: fn(TcpStream) -> F) -> (SocketAddr, JoinHandle<String>)
where
    F: Future<Output = String> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::spawn(async move { serve(listener.accept().await.unwrap().0).await }))
}

#[rstest]
#[case::plain("http://", "connect member:6443 http/1.1|host: member:6443|x-team: blue")]
#[case::with_a_password(
    "http://me:p%40ss@",
    "connect member:6443 http/1.1|host: member:6443|x-team: blue|proxy-authorization: basic bwu6cebzcw=="
)]
#[case::socks("socks5://", "member:6443")]
#[case::socks_with_a_password("socks5://me:p%40ss@", "me:p@ss@member:6443")]
#[tokio::test]
async fn members_are_reached_through_proxies(#[case] proxy: &str, #[case] expected: &str) {
    let (address, requested) = match proxy.starts_with("http") {
        true => listen(http_connect).await,
        false => listen(socks5).await,
    };
    let options = ProxyOptions {
        url: Some(format!("{proxy}{address}").parse().unwrap()),
        headers: HeaderMap::from_iter([(http::HeaderName::from_static("x-team"), HeaderValue::from_static("blue"))]),
        tls: None,
    };
    let target = Uri::from_static("https://member:6443");
    let mut io = Dialer::new(target, None, options, Duration::from_secs(10)).unwrap().dial().await.unwrap();
    io.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    io.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"hello");
    drop(io);
    assert_eq!(requested.await.unwrap(), expected);
}

#[rstest]
#[case("socks5://proxy", "socks5://proxy:1080/")]
#[case("socks5://me:secret@proxy", "socks5://me:secret@proxy:1080/")]
#[case("socks5://[::1]", "socks5://[::1]:1080/")]
#[case("socks5://proxy:9050", "socks5://proxy:9050/")]
fn socks_proxies_have_another_default_port(#[case] url: &str, #[case] expected: &str) {
    let options = ProxyOptions { url: Some(url.parse().unwrap()), ..ProxyOptions::default() };
    let dialer = Dialer::new(Uri::from_static("https://member"), None, options, Duration::ZERO).unwrap();
    let Proxy::Socks5 { url } = dialer.proxy else { panic!("{:?}", dialer.proxy) };
    assert_eq!(url.to_string(), expected);
}

/// The author of a Cluster chooses its endpoint and proxy; neither may be a service of this host.
#[rstest]
#[case::endpoint("https://127.0.0.1", None)]
#[case::endpoint_by_name("https://localhost", None)]
#[case::endpoint_as_the_resolver_reads_it("https://127.1", None)]
#[case::proxy("https://10.0.0.1:6443", Some("http://127.0.0.1"))]
#[case::proxy_by_name("https://10.0.0.1:6443", Some("socks5://localhost"))]
#[case::proxy_as_the_resolver_reads_it("https://10.0.0.1:6443", Some("http://127.1"))]
#[tokio::test]
async fn this_host_is_not_dialed(#[case] target: &str, #[case] proxy: Option<&str>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let at = |url: &str| format!("{url}:{port}").parse::<Uri>().unwrap();
    let (target, url) = match proxy {
        Some(proxy) => (target.parse().unwrap(), Some(at(proxy))),
        None => (at(target), None),
    };
    let options = ProxyOptions { url, ..ProxyOptions::default() };
    let dialer = Dialer::new(target, None, options, Duration::from_secs(10)).unwrap();
    let error = dialer.with_rules(EndpointRules::default()).dial().await.unwrap_err().to_string();
    assert!(error.contains("loopback address, which is not allowed for members"), "{error}");
    let accepted = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(accepted.is_err(), "a connection was opened");
}
