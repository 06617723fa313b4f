// A proxy that adds a bearer token to requests, because the conformance suite sends none. Like a client, it waits and retries when the
// server limits the rate (429). All other headers, including Host and Origin, are unchanged. Prints the URL of the proxy.
import http from "node:http";

const target = new URL(process.env.MCP_URL);
const token = process.env.MCP_TOKEN;

function send(incoming, body) {
  const headers = { ...incoming.headers, authorization: `Bearer ${token}` };
  const options = { host: target.hostname, port: target.port, path: target.pathname, method: incoming.method, headers };
  return new Promise((resolve, reject) => {
    const request = http.request(options, async (response) => {
      try {
        const chunks = await Array.fromAsync(response);
        resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(chunks) });
      } catch (error) {
        reject(error);
      }
    });
    request.on("error", reject);
    request.end(body);
  });
}

async function forward(incoming) {
  const body = Buffer.concat(await Array.fromAsync(incoming));
  for (;;) {
    const response = await send(incoming, body);
    if (response.status !== 429) return response;
    const seconds = Number(response.headers["retry-after"] ?? 1);
    await new Promise((resume) => setTimeout(resume, seconds * 1000));
  }
}

const server = http.createServer((incoming, outgoing) => {
  forward(incoming).then(
    ({ status, headers, body }) => outgoing.writeHead(status, headers).end(body),
    (error) => outgoing.writeHead(502).end(String(error)),
  );
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}${target.pathname}`));
