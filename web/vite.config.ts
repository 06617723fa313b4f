import react from '@vitejs/plugin-react'
import { defineConfig } from 'vite'

// No inlined assets: the content security policy allows no data: scripts or styles.
export default defineConfig({
  plugins: [react()],
  build: { assetsInlineLimit: 0, chunkSizeWarningLimit: 600, modulePreload: { polyfill: false } },
  server: { proxy: { '/api': 'http://127.0.0.1:7080', '/apis': 'http://127.0.0.1:7080', '/ui': 'http://127.0.0.1:7080' } },
})
