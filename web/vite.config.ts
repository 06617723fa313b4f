import { readFile, writeFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { promisify } from 'node:util'
import { brotliCompress, gzipSync } from 'node:zlib'
import react from '@vitejs/plugin-react'
import type { Plugin, Rolldown } from 'vite'
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

/**
 * Chunks of the start page. By default, each set of modules that another view shares is a chunk of its own; the headers and round trips of
 * about 30 responses delay the first paint. Other views keep the default.
 */
const groups: Rolldown.CodeSplittingGroup[] = [
  { name: 'app', tags: ['$initial'], priority: 1 },
  { name: (id, context) => (importsOfHome(context).has(id) ? 'home' : null), debugName: 'home' },
]

// No inlined assets: the content security policy allows no data: scripts or styles.
export default defineConfig({
  plugins: [react(), limitFirstPaint(MAX_FIRST_PAINT_BYTES), precompress()],
  build: {
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 600,
    modulePreload: { polyfill: false },
    rolldownOptions: { output: { codeSplitting: { groups } } },
  },
  server: { proxy },
  preview: { proxy, headers },
  // Style sheets whose text is tested.
  test: { css: { include: /\.css\?raw$/ } },
})

/** The home page's view and all modules that it imports statically. */
function importsOfHome(context: Rolldown.ChunkingContext): Set<string> {
  const found = new Set([resolve(import.meta.dirname, 'src/views/home/Home.tsx')])
  // A set iterates over the elements that are added meanwhile.
  for (const id of found) context.getModuleInfo(id)?.importedIds.forEach((imported) => found.add(imported))
  return found
}

/** Writes `NAME.br` beside each file of the build that Brotli makes smaller. The server sends it to browsers that accept it (server/ui/src/pages.rs). */
function precompress(): Plugin {
  return {
    name: 'precompress',
    apply: 'build',
    async writeBundle({ dir = '' }, bundle) {
      const compressFile = async (name: string) => {
        const content = await readFile(join(dir, name))
        const compressed = await promisify(brotliCompress)(content)
        if (compressed.length < content.length) await writeFile(join(dir, `${name}.br`), compressed)
      }
      await Promise.all(Object.keys(bundle).map(compressFile))
    },
  }
}

/** Fails a build whose page, scripts with their static imports, and style sheets exceed the limit. */
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
        if (!name.endsWith('.html') || file.type !== 'asset') continue
        add(name)
        for (const [, asset] of String(file.source).matchAll(/="\/(assets\/[^"]+)"/g)) add(asset!)
      }
      const total = [...sizes.values()].reduce((sum, size) => sum + size, 0)
      const message = `the first paint takes ${total} bytes gzipped of at most ${maxBytes}`
      if (total > maxBytes) this.error(`${message}: ${[...sizes].map(([name, size]) => `${name} ${size}`).join(', ')}`)
      this.info(message)
    },
  }
}
