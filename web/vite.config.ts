import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The built files are committed; their names follow from their contents.
export default defineConfig({
  plugins: [react()],
  build: { outDir: "dist", modulePreload: { polyfill: false }, assetsInlineLimit: 0, sourcemap: false,
    rolldownOptions: { input: ["index.html", "terminal.html"] } },
});
