import { gzipSync } from 'node:zlib'
import react from '@vitejs/plugin-react'
import type { Plugin } from 'vite'
import { defineConfig } from 'vitest/config'

/** Limit of compressed bytes that a browser loads for the first paint. */
const MAX_FIRST_PAINT_BYTES = 120_000
const server = process.env.CROWSNEST_UI ?? 'http://127.0.0.1:7080'
/** The development proxy keeps the `Host` header, because the server compares it with the origin of requests. */
const backend = { target: server, changeOrigin: false }
const proxy = { '/api': backend, '/apis': { ...backend, ws: true }, '/openapi': backend, '/ui': backend }
/** Response headers that the server sends (server/ui/src), for the preview. */
const headers = {
  'Content-Security-Policy': "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'",
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
}

// No inlined assets: the content security policy allows no data: scripts or styles.
export default defineConfig({
  plugins: [react(), limitFirstPaint(MAX_FIRST_PAINT_BYTES)],
  build: { assetsInlineLimit: 0, chunkSizeWarningLimit: 600, modulePreload: { polyfill: false } },
  server: { proxy },
  preview: { proxy, headers },
  // Style sheets whose text is tested.
  test: { css: { include: /\.css\?raw$/ } },
})

/** Fails a build whose page, entry script with static imports, and style sheets exceed the limit. */
function limitFirstPaint(maxBytes: number): Plugin {
  return {
    name: 'first-paint',
    apply: 'build',
    enforce: 'post',
    generateBundle(_, bundle) {
      const sizes = new Map<string, number>()
      const add = (name: string) => {
        const file = bundle[name]
        if (!file || sizes.has(name)) return
        sizes.set(name, gzipSync(file.type === 'chunk' ? file.code : file.source).length)
        if (file.type !== 'chunk') return
        file.imports.forEach(add)
        file.viteMetadata?.importedCss.forEach(add)
      }
      for (const [name, file] of Object.entries(bundle)) {
        if (name.endsWith('.html') || (file.type === 'chunk' && file.isEntry)) add(name)
      }
      const total = [...sizes.values()].reduce((sum, size) => sum + size, 0)
      const message = `the first paint takes ${total} bytes gzipped of at most ${maxBytes}`
      if (total > maxBytes) this.error(`${message}: ${[...sizes].map(([name, size]) => `${name} ${size}`).join(', ')}`)
      this.info(message)
    },
  }
}
